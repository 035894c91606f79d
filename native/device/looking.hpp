// Tells whether the memory that kernels write to is looked at: while somebody wants it, and once more at the end.
#pragma once

#include <atomic>

namespace zerohop::device {

// begin(), end() and drained(): any thread. The other two: the thread that looks.
class Looking {
public:
    void begin() { users_.fetch_add(1, std::memory_order_seq_cst); }
    void end() {
        drains_.store(true, std::memory_order_seq_cst);
        users_.fetch_sub(1, std::memory_order_seq_cst);
    }
    [[nodiscard]] bool wanted() const {
        return users_.load(std::memory_order_seq_cst) > 0 || drains_.load(std::memory_order_seq_cst);
    }
    // Tells whether everything that was there at an end() has been found.
    [[nodiscard]] bool drained() const { return !drains_.load(std::memory_order_seq_cst); }
    // Called before a look; returns what look_again() is told after it.
    [[nodiscard]] bool take_end() { return drains_.exchange(false, std::memory_order_seq_cst); }
    void look_again(bool had_end) {
        if (had_end) {
            drains_.store(true, std::memory_order_seq_cst);
        }
    }

private:
    std::atomic<int> users_{0};
    std::atomic<bool> drains_{false};
};

} // namespace zerohop::device
