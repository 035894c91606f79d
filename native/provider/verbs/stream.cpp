#include "provider/verbs/stream.hpp"

#include "base/guarded.hpp"
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <cstring>

namespace zerohop::verbs {

size_t SegmentStream::send(std::span<const iovec> pieces) {
    size_t sent = 0;
    size_t piece = 0;
    size_t within = 0;
    starved_.store(false, std::memory_order_relaxed);
    size_t filled = 0; // of the body of the last segment
    bool gone = false;
    while (piece < pieces.size() && !gone) {
        if (window_left() == 0) {
            // Before the last look: the poller makes room first and asks this afterwards.
            starved_.store(true, std::memory_order_seq_cst);
            if (window_left() == 0) {
                break;
            }
            starved_.store(false, std::memory_order_relaxed);
        }
        size_t left = 0;
        for (size_t i = piece; i < pieces.size(); ++i) {
            left += pieces[i].iov_len;
        }
        left -= within;
        if (left == 0) {
            break;
        }
        const size_t nbytes = std::min(left, kSegmentBytes - sizeof(SegmentHeader));
        const auto fill = [&](std::byte* to) {
            filled = 0;
            while (filled < nbytes) {
                const size_t n = std::min(nbytes - filled, pieces[piece].iov_len - within);
                const auto* const from = static_cast<const std::byte*>(pieces[piece].iov_base) + within;
                if (copy_guarded(to + filled, from, n) != Gone::nothing) {
                    gone = true;
                    break;
                }
                filled += n;
                within += n;
                if (within == pieces[piece].iov_len) {
                    ++piece;
                    within = 0;
                }
            }
            return filled;
        };
        sent_.fetch_add(1, std::memory_order_release); // before the other side can have taken it
        if (!lane_.post_segment({}, 0, nbytes, fill)) {
            sent_.fetch_sub(1, std::memory_order_release);
            break;
        }
        sent += filled;
    }
    return gone && sent == 0 ? kGone : sent;
}

size_t SegmentStream::receive(std::span<const iovec> pieces, bool /*streaming*/) {
    size_t got = 0;
    for (const iovec& piece : pieces) {
        for (size_t filled = 0; filled < piece.iov_len && !inbound_.empty();) {
            const Segment& front = inbound_.front();
            const size_t n = std::min<size_t>(piece.iov_len - filled, front.nbytes - at_);
            if (copy_guarded(static_cast<std::byte*>(piece.iov_base) + filled, front.data + at_, n) != Gone::nothing) {
                return got == 0 ? kGone : got;
            }
            filled += n;
            got += n;
            at_ += static_cast<uint32_t>(n);
            if (at_ == front.nbytes) {
                take_front();
            }
        }
    }
    return got;
}

bool SegmentStream::ready(bool wants_room) const {
    // A word of the other side wakes a sleeper by itself; but it may have come, and made room, just before a sender
    // that had found none said so. Room in a queue comes with a completion, which the lane's lock puts before or behind
    // the sender's look; or its domain keeps it, and knows.
    return waiting_.load(std::memory_order_acquire) != 0 ||
           (wants_room && starved_.load(std::memory_order_seq_cst) && window_left() != 0);
}

bool SegmentStream::arrived(const Segment& segment) {
    if (segment.nbytes == sizeof(SegmentHeader) || inbound_.size() >= kStreamWindow) {
        return false;
    }
    inbound_.push_back(segment);
    waiting_.store(inbound_.size(), std::memory_order_release);
    return true;
}

void SegmentStream::take_front() {
    lane_.repost(inbound_.front());
    inbound_.pop_front();
    waiting_.store(inbound_.size(), std::memory_order_release);
    at_ = sizeof(SegmentHeader);
    taken_.fetch_add(1, std::memory_order_release);
}

void SegmentStream::close(bool /*at_once*/) {
    while (!inbound_.empty()) {
        take_front();
    }
}

} // namespace zerohop::verbs
