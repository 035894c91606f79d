#include "provider/p2p/copy_queue.hpp"

#include "engine/clock.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::p2p {

namespace {

constexpr uint64_t kFixedNs = 6 * kMicrosecond; // what a copy takes however small it is
constexpr uint64_t kTellsTheRate = 4ULL << 20;  // from this size on a copy shows how fast the link is
constexpr double kWeight = 0.25;                // of what was measured last

} // namespace

void CopyQueue::push(PeerCopy copy, uint64_t now) {
    copy.began_ns = std::max(now, free_ns_);
    copy.expected_ns =
        copy.began_ns + kFixedNs + static_cast<uint64_t>(static_cast<double>(copy.nbytes) / bytes_per_ns_);
    free_ns_ = copy.expected_ns;
    if (copies_.empty()) {
        expected_ns_.store(copy.expected_ns, std::memory_order_relaxed);
    }
    announced_.fetch_add(copy.ticket.slot != nullptr ? 1 : 0, std::memory_order_relaxed);
    copies_.push_back(std::move(copy));
    pending_.fetch_add(1, std::memory_order_release);
}

void CopyQueue::reap(std::vector<PeerCopy>& ended) {
    uint64_t now = 0;
    while (!copies_.empty() && copies_.front().event->query() != accel::EventState::pending) {
        if (now == 0) {
            now = now_ns();
        }
        learn(copies_.front(), now);
        announced_.fetch_sub(copies_.front().ticket.slot != nullptr ? 1 : 0, std::memory_order_relaxed);
        ended.push_back(std::move(copies_.front()));
        copies_.pop_front();
        pending_.fetch_sub(1, std::memory_order_release);
    }
    if (now != 0 && !copies_.empty()) {
        // The next one began when this one ended.
        copies_.front().began_ns = std::max(copies_.front().began_ns, now);
        expected_ns_.store(copies_.front().expected_ns, std::memory_order_relaxed);
    }
    if (copies_.empty()) {
        free_ns_ = 0;
    }
}

const accel::Event* CopyQueue::event_of_last(const OpRef& op) const {
    const bool last = !copies_.empty() && copies_.back().op && copies_.back().op.operator->() == op.operator->();
    return last ? copies_.back().event.get() : nullptr;
}

void CopyQueue::learn(const PeerCopy& copy, uint64_t now) {
    if (copy.nbytes < kTellsTheRate || now <= copy.began_ns + kFixedNs) {
        return;
    }
    const double measured = static_cast<double>(copy.nbytes) / static_cast<double>(now - copy.began_ns - kFixedNs);
    bytes_per_ns_ += kWeight * (measured - bytes_per_ns_);
}

} // namespace zerohop::p2p
