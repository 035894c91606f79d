// How a verbs lane fails, and how it gives its queue pairs back.
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <mutex>

namespace zerohop::verbs {

// Poller. Ends the lane with a queue pair that is in the error state because of `cause`.
void VerbsEndpoint::break_off(Outcome cause) {
    if (is_open()) {
        note_cause(cause.reason);
        fail({Status::peer_lost, Reason::lane_reset});
    }
}

void VerbsEndpoint::on_last_receive(uint32_t queue_pair) {
    const std::lock_guard lock(lane());
    for (Queue& queue : queues_) {
        queue.receives = queue.receives && queue.pair->number() != queue_pair;
    }
}

void VerbsEndpoint::on_failure(Outcome outcome) {
    switch (outcome.reason) {
    case Reason::lane_reset:
    case Reason::device_lost:
        close(outcome); // the peer may well live
        host().lane_failed(peer());
        return;
    default:
        FramedEndpoint::on_failure(outcome);
    }
}

void VerbsEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    struct Ended {
        OpRef op;
        Outcome outcome;
    };
    std::vector<Ended> ended;
    {
        const std::lock_guard lock(lane());
        if (closing_) {
            return;
        }
        closing_ = true;
        closed_at_ns_ = now_ns();
        bool moving = false;
        for (uint32_t i = 0; i < transfers_.size(); ++i) {
            Transfer& transfer = transfers_[i];
            if (transfer.used) {
                // Its memory stays pinned until the device has let go of it.
                moving = true;
                if (transfer.op) {
                    ended.push_back({std::move(transfer.op), transfer.outcome.ok() ? outcome : transfer.outcome});
                }
            }
        }
        for (Flush& flush : flushes_) {
            ended.push_back({std::move(flush.op), outcome});
            ended.push_back({std::move(flush.before), outcome});
        }
        flushes_.clear();
        owed_.clear();
        posting_.clear();
        note_work();
        // Segments that were sent before a goodbye may still arrive; data that nobody waits for need not.
        if (moving || outcome.status != Status::closed || !connected_.load()) {
            fail_queues();
        }
    }
    for (Ended& each : ended) {
        each.op->finish(as_the_peer_lives(each.outcome));
    }
}

// The caller holds the lane's lock.
void VerbsEndpoint::fail_queues() {
    failed_ = true;
    failed_at_ns_ = now_ns();
    for (Queue& queue : queues_) {
        queue.pair->fail();
    }
}

// After close(): lets go of the queue pairs once the device has; true if it did.
bool VerbsEndpoint::tear_down() {
    if (torn_down_.load(std::memory_order_relaxed) || !closing_) {
        return false;
    }
    const std::unique_lock connected(connecting_, std::try_to_lock);
    const uint64_t now = now_ns();
    const uint64_t since = now - closed_at_ns_;
    {
        const std::lock_guard lock(lane());
        const bool quiet = chains_.in_use() == 0 && ones_ == 0;
        if (!failed_ && (quiet || since > kLastWords)) {
            fail_queues();
        }
        if (!failed_ || !connected.owns_lock() || (!quiet && since < kLastWords + kFlushed)) {
            return false;
        }
        const bool receives = std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) {
            return queue.receives && queue.domain->device_alive();
        });
        if (receives && now < failed_at_ns_ + kLastReceive) {
            return false;
        }
    }
    destroy_queues();
    return true;
}

void VerbsEndpoint::destroy_queues() {
    for (Queue& queue : queues_) {
        const uint32_t number = queue.pair->number();
        queue.domain->forget(number);
        queue.pair->destroy();
        queue.domain->forget(number);
    }
    if (segments_ != nullptr) {
        segments_->close(true);
    }
    {
        const std::lock_guard lock(lane());
        for (uint32_t i = 0; i < chains_.size(); ++i) { // those whose completion never came
            if (chains_[i].what != Chain::What::none) {
                end_chain(chains_[i], i);
            }
        }
        end_ones();
        for (uint32_t i = 0; i < transfers_.size(); ++i) {
            Transfer& transfer = transfers_[i];
            if (transfer.used) {
                drop_transfer(transfer, i);
            }
        }
        if (words_) {
            rails_.front()->send_buffers().give(words_);
            words_ = {};
        }
    }
    for (size_t rail = 0; rail < numbers_.size(); ++rail) {
        rails_[rail]->leave(numbers_[rail]);
    }
    numbers_.clear();
    torn_down_.store(true, std::memory_order_release);
}

} // namespace zerohop::verbs
