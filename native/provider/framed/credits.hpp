// Counts the notifications of a lane for each queue by itself, so that a queue that nobody reads holds up no other.
#pragma once

#include "base/sync.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace zerohop::framed {

// Holds a count for each of 65536 queues. Queue 0, which belongs to a Context itself, is counted without a lock.
class QueueCounts {
public:
    // Returns the new count.
    int add(uint16_t queue, int count) {
        if (queue == 0) {
            return own_.fetch_add(count, std::memory_order_acq_rel) + count;
        }
        const std::lock_guard lock(lock_);
        const auto found = others_.try_emplace(queue, 0).first;
        // A peer may give back more than it was sent.
        const int sum = found->second = std::max(0, found->second + count);
        if (sum == 0) {
            others_.erase(found);
        }
        return sum;
    }

    // Returns the count, which is 0 afterwards.
    int take(uint16_t queue) {
        if (queue == 0) {
            return own_.exchange(0, std::memory_order_acq_rel);
        }
        const std::lock_guard lock(lock_);
        const auto found = others_.find(queue);
        if (found == others_.end()) {
            return 0;
        }
        const int count = found->second;
        others_.erase(found);
        return count;
    }

private:
    std::atomic<int> own_{0};
    SpinLock lock_;
    std::unordered_map<uint16_t, int> others_; // of queues whose count is not 0
};

} // namespace zerohop::framed
