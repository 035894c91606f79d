#include "provider/shm/mapped_copy.hpp"

#include "memory/copy.hpp"

#include <vector>

namespace zerohop::shm {

namespace {

Extents walk(uint64_t base, const Request& request, const PageNumbers* pages) {
    return pages != nullptr ? Extents(base, pages->data(), pages->size(), request.pages->page_bytes)
                            : Extents(base, request.nbytes);
}

} // namespace

MappedCopy::MappedCopy(const Request& request, Pin<Region> local, Pin<Mapping> remote)
    : local_(std::move(local)), remote_(std::move(remote)), pages_(request.pages), nbytes_(request.nbytes),
      notify_(request.notify) {
    const bool outbound = request.kind == Kind::write;
    const Extents here = walk(local_->address() + request.local_offset, request, pages_ ? &pages_->local : nullptr);
    const Extents there = walk(reinterpret_cast<uint64_t>(remote_->data()) + request.remote_offset, request,
                               pages_ ? &pages_->remote : nullptr);
    // What decides is whether the destination would stay in the cache: for pages, how large the memory is that they
    // are spread over.
    const uint64_t spread = outbound ? remote_->nbytes() : local_->nbytes();
    streaming_ =
        pages_ ? pages_->page_bytes >= kMinStreamingPage && spread >= kStreamingPages : nbytes_ >= kStreamingBytes;
    src_ = outbound ? here : there;
    dst_ = outbound ? there : here;
}

uint64_t MappedCopy::step(uint64_t budget) {
    return stopped_ ? 0 : copy_extents(dst_, src_, budget, streaming_);
}

} // namespace zerohop::shm
