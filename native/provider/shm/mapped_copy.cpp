#include "provider/shm/mapped_copy.hpp"

#include "memory/copy.hpp"

#include <algorithm>

namespace zerohop::shm {

namespace {

Extents walk(uint64_t base, const Request& request, const PageNumbers* pages) {
    return pages != nullptr ? request.pages->walk(base, *pages, request.nbytes) : Extents(base, request.nbytes);
}

} // namespace

MappedCopy::MappedCopy(const Request& request, Pin<Region> local, Pin<Mapping> remote)
    : local_(std::move(local)), remote_(std::move(remote)), pages_(request.pages), nbytes_(request.nbytes),
      notify_(request.notify) {
    const bool outbound = request.kind == Kind::write;
    const Extents here = walk(local_->address() + request.local_offset, request, pages_ ? &pages_->local : nullptr);
    const Extents there = walk(reinterpret_cast<uint64_t>(remote_->data()) + request.remote_offset, request,
                               pages_ ? &pages_->remote : nullptr);
    // It streams where the destination would not stay in the cache. For pages, the size of the memory decides that they
    // are spread over.
    const uint64_t spread = outbound ? remote_->nbytes() : local_->nbytes();
    const uint64_t part = pages_ ? nbytes_ / std::max<uint64_t>(1, pages_->local.size()) : 0;
    streaming_ = pages_ ? part >= kMinStreamingPage && spread >= kStreamingPages : nbytes_ >= kStreamingBytes;
    src_ = outbound ? here : there;
    dst_ = outbound ? there : here;
}

uint64_t MappedCopy::step(uint64_t budget) {
    return stopped_ ? 0 : copy_extents(dst_, src_, budget, streaming_);
}

} // namespace zerohop::shm
