// Counts transfers that are under way, for those who wait until all that were under way at some moment have ended.
#pragma once

#include "engine/engine.hpp"
#include "operation/operation.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace zerohop::storage {

// The caller holds one lock during each call but that of count().
class UnderWay {
public:
    explicit UnderWay(Engine& engine) : engine_(engine) {}
    // Begins transfers, and returns a number that their ends are noted with.
    [[nodiscard]] uint64_t begin(size_t count) {
        count_.fetch_add(count, std::memory_order_release);
        return epoch_ + waiters_.size();
    }
    void end_one(uint64_t epoch) {
        count_.fetch_sub(1, std::memory_order_release);
        // Those that began to wait after it had begun wait for it.
        for (size_t i = epoch > epoch_ ? epoch - epoch_ : 0; i < waiters_.size(); ++i) {
            --waiters_[i].left;
        }
        while (!waiters_.empty() && waiters_.front().left == 0) {
            const OpRef op = std::move(waiters_.front().op);
            waiters_.pop_front();
            ++epoch_;
            engine_.finish(op, {});
        }
    }
    // Returns an operation that ends with all transfers that are under way; null if there are none.
    [[nodiscard]] OpRef all() {
        const size_t left = count();
        if (left == 0) {
            return {};
        }
        waiters_.push_back({engine_.operations().create(0), left});
        return waiters_.back().op;
    }
    // Any thread.
    [[nodiscard]] size_t count() const { return count_.load(std::memory_order_acquire); }

private:
    struct Waiter {
        OpRef op;
        size_t left; // transfers that it waits for
    };
    Engine& engine_;
    std::deque<Waiter> waiters_; // in the order in which they began to wait
    uint64_t epoch_ = 0;         // waiters that there have been, without those
    std::atomic<size_t> count_{0};
};

} // namespace zerohop::storage
