// A completion queue: tokens of the operations that ended, and one event descriptor for all of them, so that an
// event loop needs a single reader however many operations are in flight.
#pragma once

#include "memory/descriptor.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace zerohop {

class CompletionQueue {
public:
    CompletionQueue();

    // Readable while tokens wait; -1 after close().
    int fd() const { return event_.get(); }
    void push(uint64_t token);
    [[nodiscard]] std::vector<uint64_t> drain();
    [[nodiscard]] bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
    // Later pushes are dropped: the loop that would have read them is gone.
    void close();
    bool closed() const;

private:
    mutable std::mutex mutex_;
    std::vector<uint64_t> tokens_;
    std::atomic<size_t> size_{0};
    Descriptor event_;
    bool closed_ = false;
};

} // namespace zerohop
