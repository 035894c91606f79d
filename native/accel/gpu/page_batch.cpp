#include "accel/gpu/page_batch.hpp"

#include <algorithm>
#include <vector>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kMostAtOnce = 4096;

uint64_t dst_of(const PageCopy& pages, size_t i) {
    return pages.dst_base + pages.dst_pages[i] * pages.page_bytes;
}

uint64_t src_of(const PageCopy& pages, size_t i) {
    return pages.src_base + pages.src_pages[i] * pages.page_bytes;
}

} // namespace

GpuResult copy_page_by_page(const GpuApi& api, const PageCopy& pages, void* stream) {
    const size_t count = pages.dst_pages.size();
    GpuResult result = 0;
    if (api.copy_batch == nullptr) {
        for (size_t i = 0; i < count && result == 0; ++i) {
            result = api.copy(dst_of(pages, i), src_of(pages, i), pages.page_bytes, stream);
        }
        return result;
    }
    const size_t most = std::min(count, kMostAtOnce);
    std::vector<shim::GpuAddress> dst(most);
    std::vector<shim::GpuAddress> src(most);
    const std::vector<size_t> sizes(most, pages.page_bytes);
    const shim::GpuCopyAttributes attributes;
    const size_t from_the_first = 0;
    for (size_t at = 0; at < count && result == 0; at += most) {
        const size_t n = std::min(most, count - at);
        for (size_t i = 0; i < n; ++i) {
            dst[i] = dst_of(pages, at + i);
            src[i] = src_of(pages, at + i);
        }
        size_t failed = 0;
        result =
            api.copy_batch(dst.data(), src.data(), sizes.data(), n, &attributes, &from_the_first, 1, &failed, stream);
    }
    return result;
}

} // namespace zerohop::accel::gpu
