#include "operation/operation.hpp"

#include <mutex>
#include <new>
#include <ranges>
#include <utility>

namespace zerohop {

bool Operation::finish(Outcome outcome, uint64_t bytes_done, uint64_t value) {
    return end(false, outcome, bytes_done, value);
}

bool Operation::claim() {
    const std::lock_guard lock(lock_);
    return status_.load(std::memory_order_relaxed) == Status::pending && !std::exchange(claimed_, true);
}

void Operation::finish_claimed(Outcome outcome, uint64_t bytes_done, uint64_t value) {
    end(true, outcome, bytes_done, value);
}

[[gnu::always_inline]] inline bool Operation::end(bool claimed, Outcome outcome, uint64_t bytes_done, uint64_t value) {
    bool noted = false;
    {
        const std::lock_guard lock(lock_);
        if (status_.load(std::memory_order_relaxed) != Status::pending || claimed_ != claimed) {
            return false;
        }
        claimed_ = false;
        reason_ = outcome.reason;
        bytes_done_ = bytes_done;
        value_ = value;
        finished_ns_ = now_ns();
        noted = noted_;
        if (noted) {
            settle_notes(outcome);
        }
        // Before the status: a thread that sees this operation done must not count it as pending.
        slab_->pending_.fetch_sub(1, std::memory_order_acq_rel);
        status_.store(outcome.status, std::memory_order_release);
    }
    if (noted) {
        notify_listeners(); // before on_finish_ wakes waiters: one of them may be waiting for the queue itself
    }
    slab_->on_finish_();
    return true;
}

// The caller holds the lock. Not inlined, because most operations end without it.
[[gnu::noinline]] void Operation::settle_notes(Outcome outcome) {
    if (std::exchange(awaited_, false)) {
        slab_->awaited_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (std::exchange(abandoned_, false)) {
        slab_->count_unseen(outcome);
    }
    noted_ = false; // for the slot's next operation
}

void Operation::join(const OperationGroup& group) {
    // with seq_cst, either finish_group() sees the group here, or ended() below is true
    group_.store(&group, std::memory_order_seq_cst);
    if (group.ended()) {
        finish(group.outcome());
    }
}

// Pushes the tokens to the listeners. arm() adds none any more, because the operation is done.
void Operation::notify_listeners() {
    std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> armed;
    {
        const std::lock_guard lock(lock_);
        armed.swap(armed_);
    }
    for (const auto& [queue, token] : armed) {
        queue->push(token);
    }
}

bool Operation::arm(std::shared_ptr<Listener> queue, uint64_t token, Awaited awaited) {
    const std::lock_guard lock(lock_);
    if (status_.load(std::memory_order_relaxed) != Status::pending) {
        return false;
    }
    noted_ = true;
    if (awaited == Awaited::yes && !std::exchange(awaited_, true)) {
        // before the poller checks whether a thread sleeps for too long
        slab_->awaited_.fetch_add(1, std::memory_order_seq_cst);
    }
    std::erase_if(armed_, [](const auto& each) { return each.first->closed(); });
    armed_.emplace_back(std::move(queue), token);
    return true;
}

void Operation::disarm(const Listener& queue, uint64_t token) {
    const std::lock_guard lock(lock_);
    const bool gone = std::erase_if(armed_, [&](const auto& each) {
                          return each.first.get() == &queue && each.second == token;
                      }) != 0;
    if (gone && armed_.empty() && status_.load(std::memory_order_relaxed) == Status::pending &&
        std::exchange(awaited_, false)) {
        slab_->awaited_.fetch_sub(1, std::memory_order_relaxed);
    }
}

bool Operation::abandon() {
    const std::lock_guard lock(lock_);
    if (status_.load(std::memory_order_relaxed) != Status::pending) {
        return false;
    }
    abandoned_ = noted_ = true;
    return true;
}

void OperationSlab::count_unseen(Outcome outcome) {
    if (!outcome.ok() && outcome.status != Status::cancelled && outcome.status != Status::closed) {
        const std::lock_guard lock(lock_);
        ++unseen_failures_;
        last_unseen_ = outcome;
    }
}

std::pair<uint64_t, Outcome> OperationSlab::unseen_failures() const {
    const std::lock_guard lock(lock_);
    return {unseen_failures_, last_unseen_};
}

OpRef OperationSlab::create(uint64_t deadline_ns, uint64_t started_ns) {
    Operation* op = nullptr;
    {
        const std::lock_guard lock(lock_);
        if (free_ == nullptr) {
            if (chunks_.size() == kChunks) {
                throw NativeError(Status::no_memory, Reason::window_full, "1 Mi operations are in flight");
            }
            chunks_.push_back(std::make_unique<Chunk>());
            for (Operation& slot : std::views::reverse(*chunks_.back())) {
                slot.slab_ = this;
                slot.next_free_ = free_;
                free_ = &slot;
            }
        }
        op = free_;
        free_ = op->next_free_;
        // Under the slab's lock, so that a scan for deadlines sees either the old operation or the whole new one.
        op->deadline_ns_ = deadline_ns;
        op->reason_ = Reason::none;
        op->bytes_done_ = 0;
        op->value_ = 0;
        op->group_.store(nullptr, std::memory_order_relaxed);
        op->holders_.store(1, std::memory_order_relaxed);
        op->started_ns_ = started_ns;
        pending_.fetch_add(1, std::memory_order_acq_rel);
        op->status_.store(Status::pending, std::memory_order_release);
    }
    note_deadline(deadline_ns);
    return OpRef(op);
}

void OperationSlab::note_deadline(uint64_t deadline_ns) {
    if (deadline_ns == 0) {
        return;
    }
    uint64_t known = earliest_.load(std::memory_order_relaxed);
    while (deadline_ns < known && !earliest_.compare_exchange_weak(known, deadline_ns, std::memory_order_acq_rel)) {
    }
}

void OperationSlab::release(Operation* op) {
    if (!op->done()) { // dropped while pending: no holder is left to end it or to ask for it
        op->finish({Status::cancelled, Reason::user});
    }
    const std::lock_guard lock(lock_);
    op->next_free_ = free_;
    free_ = op;
}

template <class F> void OperationSlab::for_each_pending(F&& f) {
    std::vector<OpRef> found;
    {
        const std::lock_guard lock(lock_);
        for (const auto& chunk : chunks_) {
            for (Operation& op : *chunk) {
                if (op.status_.load(std::memory_order_acquire) != Status::pending) {
                    continue;
                }
                // A slot without a holder is on its way back to the slab and must not be held again.
                uint32_t holders = op.holders_.load(std::memory_order_relaxed);
                while (holders != 0 && !op.holders_.compare_exchange_weak(holders, holders + 1)) {
                }
                if (holders != 0) {
                    found.push_back(OpRef(&op));
                }
            }
        }
    }
    for (OpRef& op : found) {
        f(*op);
    }
}

uint64_t OperationSlab::expire(uint64_t now) {
    if (now < earliest_.load(std::memory_order_acquire)) {
        return earliest_.load(std::memory_order_acquire);
    }
    earliest_.store(UINT64_MAX, std::memory_order_release); // from here on new operations note their deadlines again
    const auto check = [&](Operation& op) {
        const uint64_t deadline = op.deadline_ns();
        if (deadline == 0) {
            return;
        }
        if (deadline <= now) {
            op.finish({Status::deadline, Reason::none});
        } else {
            note_deadline(deadline);
        }
    };
    try {
        for_each_pending(check);
    } catch (const std::bad_alloc&) {
        note_deadline(now); // the next call looks again
    }
    return earliest_.load(std::memory_order_acquire);
}

void OperationSlab::finish_all(Outcome outcome) {
    for_each_pending([&](Operation& op) { op.finish(outcome); });
}

void OperationSlab::finish_group(OperationGroup& group, Outcome outcome) {
    {
        const std::lock_guard lock(lock_);
        if (group.ended()) {
            return;
        }
        group.outcome_ = outcome;
        group.ended_.store(true, std::memory_order_seq_cst);
    }
    for_each_pending([&](Operation& op) {
        if (op.group_.load(std::memory_order_seq_cst) == &group) {
            op.finish(outcome);
        }
    });
}

} // namespace zerohop
