// Runs something once, for whoever comes first.
#pragma once

#include <atomic>
#include <mutex>

namespace zerohop {

// Like std::call_once. But a call that throws leaves the work to the next caller for certain: std::call_once hangs
// there with some C libraries, and under ThreadSanitizer.
class Once {
public:
    // Runs `work` unless it has run before; waits while another thread runs it. What it did is visible afterwards.
    template <typename Work> void run(const Work& work) {
        if (done_.load(std::memory_order_acquire)) {
            return;
        }
        const std::lock_guard lock(mutex_);
        if (!done_.load(std::memory_order_relaxed)) {
            work();
            done_.store(true, std::memory_order_release);
        }
    }

private:
    std::mutex mutex_;
    std::atomic<bool> done_{false};
};

} // namespace zerohop
