#include "accel/gpu/pinned_list.hpp"

#include "base/page_list.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kLeast = 32768; // bytes of the smallest buffer

// Keeps free buffers by their size, for the life of the process, because a device may read one late.
struct Pool {
    std::mutex mutex;
    std::multimap<size_t, std::byte*> free;
};

Pool& pool() {
    static auto* const kept = new Pool; // never destroyed, because destructors use it at exit
    return *kept;
}

} // namespace

std::shared_ptr<PinnedList> PinnedList::of(const GpuApi& api, size_t nbytes) {
    const size_t capacity = std::bit_ceil(std::max(kLeast, nbytes));
    void* data = nullptr;
    {
        const std::lock_guard lock(pool().mutex);
        if (const auto found = pool().free.find(capacity); found != pool().free.end()) {
            data = found->second;
            pool().free.erase(found);
        }
    }
    if (data == nullptr && api.host_alloc(&data, capacity, shim::kGpuPortable) != 0) {
        return nullptr;
    }
    return std::make_shared<PinnedList>(static_cast<std::byte*>(data), capacity);
}

PinnedList::~PinnedList() {
    const std::lock_guard lock(pool().mutex);
    pool().free.emplace(capacity_, data_);
}

std::shared_ptr<PinnedList> pinned_pages(const GpuApi& api, std::span<const uint64_t> src,
                                         std::span<const uint64_t> dst) {
    std::shared_ptr<PinnedList> list = PinnedList::of(api, (src.size() + dst.size()) * sizeof(uint32_t));
    if (!list) {
        return nullptr;
    }
    auto* const numbers = list->data<uint32_t>();
    const bool fit = narrow_numbers(src, numbers) && narrow_numbers(dst, numbers + src.size());
    return fit ? list : nullptr;
}

} // namespace zerohop::accel::gpu
