// Tells whether the memory that kernels write to is looked at: while somebody wants it, and once more at each end.
#pragma once

#include <atomic>
#include <cstdint>

namespace zerohop::device {

// begin(), end(), drained() and wanted(): any thread. The others: the thread that looks.
class Looking {
public:
    void begin() { users_.fetch_add(1, std::memory_order_seq_cst); }
    void end() {
        ends_.fetch_add(1, std::memory_order_seq_cst);
        users_.fetch_sub(1, std::memory_order_seq_cst);
    }
    [[nodiscard]] bool wanted() const { return users_.load(std::memory_order_seq_cst) > 0 || !drained(); }
    // Tells whether everything that was there at the ends until now has been found, and counted where it is found.
    [[nodiscard]] bool drained() const {
        return drained_.load(std::memory_order_seq_cst) == ends_.load(std::memory_order_seq_cst);
    }
    // Called before a look. It is passed to found_all() after a look that has left nothing, once that is counted.
    [[nodiscard]] uint64_t ends() const { return ends_.load(std::memory_order_seq_cst); }
    void found_all(uint64_t ends) { drained_.store(ends, std::memory_order_seq_cst); }

private:
    std::atomic<int> users_{0};
    std::atomic<uint64_t> ends_{0};
    std::atomic<uint64_t> drained_{0}; // of these, those whose memory was looked at
};

} // namespace zerohop::device
