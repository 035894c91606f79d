#include "provider/shm/mapped_copy.hpp"

#include "memory/copy.hpp"
#include "memory/staging.hpp"

#include <algorithm>
#include <vector>

namespace zerohop::shm {

namespace {

constexpr size_t kCopiesAhead = 4;
constexpr size_t kSegmentsPerCopy = 512;

Extents walk(uint64_t base, const Request& request, const std::vector<uint64_t>* pages) {
    return pages != nullptr ? Extents(base, pages->data(), pages->size(), request.pages->page_bytes)
                            : Extents(base, request.nbytes);
}

} // namespace

MappedCopy::MappedCopy(Accelerators& accelerators, const Request& request, Pin<Region> local, Pin<Mapping> remote)
    : accelerators_(accelerators), local_(std::move(local)), remote_(std::move(remote)), pages_(request.pages),
      nbytes_(request.nbytes), notify_(request.notify), on_device_(!local_->is_host()),
      outbound_(request.kind == Kind::write) {
    const Extents here = walk(local_->address() + request.local_offset, request, pages_ ? &pages_->local : nullptr);
    const Extents there = walk(reinterpret_cast<uint64_t>(remote_->data()) + request.remote_offset, request,
                               pages_ ? &pages_->remote : nullptr);
    // What decides is whether the destination would stay in the cache: for pages, how large the memory is that they
    // are spread over.
    const uint64_t spread = outbound_ ? remote_->nbytes() : local_->nbytes();
    streaming_ =
        pages_ ? pages_->page_bytes >= kMinStreamingPage && spread >= kStreamingPages : nbytes_ >= kStreamingBytes;
    src_ = outbound_ ? here : there;
    dst_ = outbound_ ? there : here;
}

uint64_t MappedCopy::step(uint64_t budget) {
    if (stopped_ || !outcome_.ok()) {
        return 0;
    }
    if (on_device_) {
        return step_on_device(budget);
    }
    return copy_extents(dst_, src_, budget, streaming_);
}

uint64_t MappedCopy::step_on_device(uint64_t budget) {
    uint64_t moved = 0;
    while (moved < budget && src_.left() != 0 && events_.size() < kCopiesAhead) {
        accel::Stream* stream = accelerators_.stream(local_->device(), outbound_ ? Accelerators::Direction::outbound
                                                                                 : Accelerators::Direction::inbound);
        if (stream == nullptr) {
            outcome_ = {Status::device_error, Reason::device_lost};
            break;
        }
        std::vector<accel::CopySegment> segments;
        uint64_t bytes = 0;
        while (src_.left() != 0 && segments.size() < kSegmentsPerCopy && bytes < budget) {
            const uint64_t n = std::min({src_.contiguous(), dst_.contiguous(), budget - bytes});
            segments.push_back({dst_.address(), src_.address(), n});
            src_.advance(n);
            dst_.advance(n);
            bytes += n;
        }
        events_.push_back(stream->copy(segments));
        moved += bytes;
    }
    return moved;
}

bool MappedCopy::done() {
    while (!events_.empty() && events_.front()->query() != accel::EventState::pending) {
        if (events_.front()->query() == accel::EventState::failed && outcome_.ok()) {
            outcome_ = events_.front()->outcome();
        }
        events_.pop_front();
    }
    return events_.empty() && (stopped_ || !outcome_.ok() || src_.left() == 0);
}

} // namespace zerohop::shm
