// A completion queue: tokens of the operations that ended, and one event descriptor for all of them, so that an
// event loop needs a single reader however many operations are in flight.
#pragma once

#include "base/descriptor.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace zerohop {

// Who is told of ends, by a token that was agreed on.
class Listener {
public:
    virtual ~Listener() = default;
    virtual void push(uint64_t token) = 0;
    // Does not want to know any more.
    [[nodiscard]] virtual bool closed() const { return false; }
};

class CompletionQueue final : public Listener {
public:
    CompletionQueue();

    // Readable while tokens wait; -1 after close().
    int fd() const { return event_.get(); }
    void push(uint64_t token) override;
    [[nodiscard]] std::vector<uint64_t> drain();
    [[nodiscard]] bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
    // Later pushes are dropped: the loop that would have read them is gone.
    void close();
    bool closed() const override;

private:
    mutable std::mutex mutex_;
    std::vector<uint64_t> tokens_;
    std::atomic<size_t> size_{0};
    Descriptor event_;
    bool closed_ = false;
};

} // namespace zerohop
