#include "provider/p2p/copy_queue.hpp"

#include "base/clock.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace zerohop::p2p {

void CopyQueue::push(PeerCopy copy, uint64_t now) {
    add(std::move(copy), now, kFixedNs);
    ++commands_;
}

void CopyQueue::hold(PeerCopy copy, const accel::CopySegment& segment, uint64_t now) {
    copy.last = false;
    add(std::move(copy), now, held_.empty() ? kFixedNs : 0);
    held_.push_back(segment); // there is room
    if (held_.size() == 1) {
        due_ns_.store(now + kHeldNs, std::memory_order_seq_cst); // before the look for sleepers that sleep too long
    } else if (held_.size() == kMostHeld) {
        issue();
    }
}

void CopyQueue::issue() {
    if (held_.empty()) {
        return;
    }
    std::shared_ptr<accel::Event> event;
    try {
        event = stream_->copy_many(held_, {});
    } catch (const std::bad_alloc&) { // they stay, and the next look tries again
        return;
    }
    std::for_each(copies_.end() - static_cast<ptrdiff_t>(held_.size()), copies_.end(),
                  [&](PeerCopy& copy) { copy.event = event; });
    copies_.back().last = true;
    ++commands_;
    gathered_.fetch_add(held_.size() > 1 ? held_.size() : 0, std::memory_order_relaxed);
    held_.clear();
    due_ns_.store(UINT64_MAX, std::memory_order_relaxed);
}

void CopyQueue::issue_when_due(uint64_t now, bool attended) {
    if (!held_.empty() && (commands_ < (attended ? kEnough : 1) || now >= due_ns())) {
        issue();
    }
}

void CopyQueue::drop_held(std::vector<PeerCopy>& dropped) {
    for (; !held_.empty(); held_.pop_back()) {
        announced_.fetch_sub(copies_.back().ticket.slot != nullptr ? 1 : 0, std::memory_order_relaxed);
        dropped.push_back(std::move(copies_.back()));
        copies_.pop_back();
        pending_.fetch_sub(1, std::memory_order_release);
    }
    due_ns_.store(UINT64_MAX, std::memory_order_relaxed);
}

void CopyQueue::add(PeerCopy copy, uint64_t now, uint64_t fixed_ns) {
    copy.began_ns = now;
    copy.needs_ns = fixed_ns + rates_.needs_ns(copy.form, copy.nbytes);
    busy_until_ns_ = std::max(busy_until_ns_, now) + copy.needs_ns;
    if (copies_.empty()) {
        expected_ns_.store(now + copy.needs_ns, std::memory_order_relaxed);
    }
    announced_.fetch_add(copy.ticket.slot != nullptr ? 1 : 0, std::memory_order_relaxed);
    copies_.push_back(std::move(copy));
    pending_.fetch_add(1, std::memory_order_release);
}

void CopyQueue::reap(std::vector<PeerCopy>& ended, bool attended) {
    uint64_t now = 0;
    while (!copies_.empty() && copies_.front().event && copies_.front().event->query() != accel::EventState::pending) {
        if (now == 0) { // nobody knows when the copies behind it began
            now = now_ns();
            learn(copies_.front(), now);
        }
        announced_.fetch_sub(copies_.front().ticket.slot != nullptr ? 1 : 0, std::memory_order_relaxed);
        commands_ -= copies_.front().last ? 1 : 0;
        ended.push_back(std::move(copies_.front()));
        copies_.pop_front();
        pending_.fetch_sub(1, std::memory_order_release);
    }
    if (copies_.empty()) {
        busy_until_ns_ = 0;
        return;
    }
    PeerCopy& front = copies_.front();
    if (now != 0) {
        // It began when the one before it ended.
        front.began_ns = std::max(front.began_ns, now);
        expected_ns_.store(front.began_ns + front.needs_ns, std::memory_order_relaxed);
    }
    if (attended && front.nbytes >= kTellsTheRate) {
        front.pending_ns = now != 0 ? now : now_ns();
    }
}

const accel::Event* CopyQueue::event_of_last(const OpRef& op) {
    if (copies_.empty() || !copies_.back().op || copies_.back().op.operator->() != op.operator->()) {
        return nullptr;
    }
    issue();
    return copies_.back().event.get();
}

// Learns from a copy only if a thread that waits has seen it pending: no other can have slept through its end, or seen
// it coming.
void CopyQueue::learn(const PeerCopy& copy, uint64_t now) {
    if (copy.pending_ns >= copy.began_ns && now > copy.began_ns) {
        rates_.learn(copy.form, copy.nbytes, now - copy.began_ns, now - copy.pending_ns);
    }
}

} // namespace zerohop::p2p
