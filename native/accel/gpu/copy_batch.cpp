#include "accel/gpu/copy_batch.hpp"

#include <algorithm>
#include <vector>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kMostAtOnce = 4096;

// `segment(i)` returns the i-th segment; none is empty.
template <class F> GpuResult copy_all(const GpuApi& api, size_t count, F&& segment, void* stream) {
    GpuResult result = 0;
    if (api.copy_batch == nullptr || count == 1) {
        for (size_t i = 0; i < count && result == 0; ++i) {
            const CopySegment one = segment(i);
            result = api.copy(one.dst, one.src, one.nbytes, stream);
        }
        return result;
    }
    const size_t most = std::min(count, kMostAtOnce);
    std::vector<shim::GpuAddress> dst(most);
    std::vector<shim::GpuAddress> src(most);
    std::vector<size_t> sizes(most);
    const shim::GpuCopyAttributes attributes;
    const size_t from_the_first = 0;
    for (size_t at = 0; at < count && result == 0; at += most) {
        const size_t n = std::min(most, count - at);
        for (size_t i = 0; i < n; ++i) {
            const CopySegment one = segment(at + i);
            dst[i] = one.dst;
            src[i] = one.src;
            sizes[i] = one.nbytes;
        }
        size_t failed = 0;
        result =
            api.copy_batch(dst.data(), src.data(), sizes.data(), n, &attributes, &from_the_first, 1, &failed, stream);
    }
    return result;
}

} // namespace

GpuResult copy_page_by_page(const GpuApi& api, const PageCopy& pages, void* stream) {
    return copy_all(api, pages.dst_pages.size(), [&](size_t i) { return pages.segment(i); }, stream);
}

GpuResult copy_one_by_one(const GpuApi& api, std::span<const CopySegment> segments, void* stream) {
    return copy_all(api, segments.size(), [&](size_t i) { return segments[i]; }, stream);
}

} // namespace zerohop::accel::gpu
