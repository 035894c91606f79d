#include "provider/verbs/buffers.hpp"

#include "base/pages.hpp"
#include "base/status.hpp"
#include "provider/verbs/memory_region.hpp"

#include <cerrno>
#include <mutex>
#include <sys/mman.h>

namespace zerohop::verbs {

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
    const std::shared_ptr<void> pages = map_private(nbytes, PROT_READ | PROT_WRITE);
    if (!pages) {
        raise("no memory for message buffers", errno);
    }
    slabs_.push_back({pages, std::make_unique<MemoryRegion>(device_, pages.get(), nbytes, IBV_ACCESS_LOCAL_WRITE)});
    made_ += kSlabBuffers;
    for (size_t i = kSlabBuffers; i-- > 0;) {
        free_.push_back(
            {static_cast<std::byte*>(pages.get()) + i * kSegmentBytes, slabs_.back().registration->local_key()});
    }
}

} // namespace zerohop::verbs
