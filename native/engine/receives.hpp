// Receives that the next message of any peer ends, whichever lane brings it. Those of a lane itself go first.
#pragma once

#include "base/sync.hpp"
#include "provider/request.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace zerohop {

class Receives {
public:
    void add(PostedRecv recv) {
        const std::lock_guard lock(lock_);
        waiting_.push_back(std::move(recv));
        any_.store(true, std::memory_order_seq_cst);
    }

    // Takes the oldest that has not ended.
    [[nodiscard]] std::optional<PostedRecv> take() {
        if (!any_.load(std::memory_order_seq_cst)) {
            return std::nullopt;
        }
        const std::lock_guard lock(lock_);
        std::optional<PostedRecv> taken;
        while (!taken && !waiting_.empty()) {
            if (!waiting_.front().op->done()) {
                taken = std::move(waiting_.front());
            }
            waiting_.pop_front();
        }
        any_.store(!waiting_.empty(), std::memory_order_seq_cst);
        return taken;
    }

    // Gives back the memory of those that have ended: cancelled, too late, or closed.
    void drop_ended() {
        if (any_.load(std::memory_order_relaxed)) {
            const std::lock_guard lock(lock_);
            std::erase_if(waiting_, [](const PostedRecv& recv) { return recv.op->done(); });
            any_.store(!waiting_.empty(), std::memory_order_seq_cst);
        }
    }

private:
    SpinLock lock_;
    std::deque<PostedRecv> waiting_;
    std::atomic<bool> any_{false};
};

} // namespace zerohop
