#include "accel/gpu/page_indices.hpp"

#include "base/page_list.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kLeast = 8192; // the size of the smallest buffer, in numbers
constexpr unsigned kPortable = 1;

// Keeps free buffers by their size, for the life of the process, because a device may read one late.
struct Pool {
    std::mutex mutex;
    std::multimap<size_t, uint32_t*> free;
};

Pool& pool() {
    static auto* const kept = new Pool; // never destroyed, because destructors use it at exit
    return *kept;
}

} // namespace

std::shared_ptr<PageIndices> PageIndices::of(const GpuApi& api, std::span<const uint64_t> src,
                                             std::span<const uint64_t> dst) {
    const size_t capacity = std::bit_ceil(std::max(kLeast, 2 * src.size()));
    void* data = nullptr;
    {
        const std::lock_guard lock(pool().mutex);
        if (const auto found = pool().free.find(capacity); found != pool().free.end()) {
            data = found->second;
            pool().free.erase(found);
        }
    }
    if (data == nullptr && api.host_alloc(&data, capacity * sizeof(uint32_t), kPortable) != 0) {
        return nullptr;
    }
    auto indices = std::make_shared<PageIndices>(static_cast<uint32_t*>(data), capacity, src.size());
    const bool fit = narrow_numbers(src, indices->data_) && narrow_numbers(dst, indices->data_ + src.size());
    return fit ? indices : nullptr;
}

PageIndices::~PageIndices() {
    const std::lock_guard lock(pool().mutex);
    pool().free.emplace(capacity_, data_);
}

} // namespace zerohop::accel::gpu
