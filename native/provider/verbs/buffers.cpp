#include "provider/verbs/buffers.hpp"

#include "base/status.hpp"
#include "provider/verbs/memory_region.hpp"

#include <cerrno>
#include <mutex>
#include <sys/mman.h>

namespace zerohop::verbs {

BufferPool::~BufferPool() {
    for (Slab& slab : slabs_) {
        slab.registration.reset();
        munmap(slab.base, slab.nbytes);
    }
}

Buffer BufferPool::take() {
    const std::lock_guard lock(lock_);
    if (free_.empty() && made_ < most_) {
        try {
            grow();
        } catch (const NativeError&) { // no memory now; buffers that are in use come back
            return {};
        }
    }
    if (free_.empty()) {
        return {};
    }
    const Buffer buffer = free_.back();
    free_.pop_back();
    return buffer;
}

void BufferPool::give(Buffer buffer) {
    const std::lock_guard lock(lock_);
    free_.push_back(buffer);
}

void BufferPool::prepare() {
    const std::lock_guard lock(lock_);
    if (made_ == 0) {
        grow();
    }
}

void BufferPool::grow() {
    const size_t nbytes = kSlabBuffers * kSegmentBytes;
    void* base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        raise("no memory for message buffers", errno);
    }
    try {
        slabs_.push_back({base, nbytes, std::make_unique<MemoryRegion>(device_, base, nbytes, IBV_ACCESS_LOCAL_WRITE)});
    } catch (...) {
        munmap(base, nbytes);
        throw;
    }
    made_ += kSlabBuffers;
    for (size_t i = kSlabBuffers; i-- > 0;) {
        free_.push_back({static_cast<std::byte*>(base) + i * kSegmentBytes, slabs_.back().registration->local_key()});
    }
}

} // namespace zerohop::verbs
