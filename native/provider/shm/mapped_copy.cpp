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
      notify_(request.notify), message_(message_of(request)), outbound_(request.kind == Kind::write) {
    const Extents here = walk(local_->address() + request.local_offset, request, pages_ ? &pages_->local : nullptr);
    const Extents there = walk(reinterpret_cast<uint64_t>(remote_->data()) + request.remote_offset, request,
                               pages_ ? &pages_->remote : nullptr);
    // It streams where the destination would not stay in the cache. For pages, the size of the memory decides that they
    // are spread over.
    const uint64_t spread = outbound_ ? remote_->nbytes() : local_->nbytes();
    const uint64_t part = pages_ ? nbytes_ / std::max<uint64_t>(1, pages_->local.size()) : 0;
    streaming_ = pages_ ? part >= kMinStreamingPage && spread >= kStreamingPages : nbytes_ >= kStreamingBytes;
    src_ = outbound_ ? here : there;
    dst_ = outbound_ ? there : here;
}

uint64_t MappedCopy::step(uint64_t budget) {
    stopped_ = stopped_ || local_->moved();
    if (stopped_) {
        return 0;
    }
    if (!pages_ && nbytes_ <= guard::kSmallCopy) { // in one step, and cheaper
        gone_ = guard::copy_small(reinterpret_cast<void*>(dst_.address()),
                                  reinterpret_cast<const void*>(src_.address()), nbytes_);
        stopped_ = true;
        return nbytes_;
    }
    const Touched local{local_->address(), local_->nbytes()};
    const Touched remote{reinterpret_cast<uint64_t>(remote_->data()), remote_->nbytes()};
    const Copied copied =
        copy_extents(dst_, src_, budget, streaming_, outbound_ ? remote : local, outbound_ ? local : remote);
    gone_ = copied.gone;
    stopped_ = gone_ != Gone::nothing;
    return copied.nbytes;
}

} // namespace zerohop::shm
