// Counts messages as they arrive, for somebody who wants to know how many there were, and not what they said.
#pragma once

#include "operation/completion_queue.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace zerohop {

class Tally {
public:
    // `queue` gets the token when as many were counted as want() has said.
    Tally(std::shared_ptr<CompletionQueue> queue, uint64_t token) : queue_(std::move(queue)), token_(token) {}

    [[nodiscard]] uint64_t count() const { return count_.load(std::memory_order_seq_cst); }
    void add(uint64_t more) {
        const uint64_t count = count_.fetch_add(more, std::memory_order_seq_cst) + more;
        // The exchange decides who pushes, of several lanes and the thread that has just said what it wants.
        uint64_t wanted = wanted_.load(std::memory_order_seq_cst);
        if (count >= wanted && wanted_.compare_exchange_strong(wanted, kNone, std::memory_order_seq_cst)) {
            queue_->push(token_);
        }
    }
    // Says how many somebody waits for. Several may: the fewest count, and all look again after each token.
    void want(uint64_t count) {
        uint64_t before = wanted_.load(std::memory_order_seq_cst);
        while (count < before && !wanted_.compare_exchange_weak(before, count, std::memory_order_seq_cst)) {
        }
        uint64_t wanted = count;
        if (this->count() >= count && wanted_.compare_exchange_strong(wanted, kNone, std::memory_order_seq_cst)) {
            queue_->push(token_);
        }
    }

private:
    static constexpr uint64_t kNone = UINT64_MAX;
    std::shared_ptr<CompletionQueue> queue_;
    const uint64_t token_;
    std::atomic<uint64_t> count_{0};
    std::atomic<uint64_t> wanted_{kNone};
};

} // namespace zerohop
