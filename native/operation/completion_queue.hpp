// Collects the tokens of operations that have ended, and signals them through one event descriptor, so that an event
// loop needs a single reader however many operations are in flight.
#pragma once

#include "base/descriptor.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace zerohop {

// Is told of the end of an operation, by a token that was agreed on when it was armed.
class Listener {
public:
    virtual ~Listener() = default;
    virtual void push(uint64_t token) = 0;
    // True if the listener no longer wants to be told.
    [[nodiscard]] virtual bool closed() const { return false; }
};

class CompletionQueue final : public Listener {
public:
    // Returns a descriptor that is readable while tokens wait; -1 after close().
    int fd() const { return event_.get(); }
    void push(uint64_t token) override;
    [[nodiscard]] std::vector<uint64_t> drain();
    [[nodiscard]] bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
    // Drops all tokens, also later ones: the event loop that would have read them is gone.
    void close();
    bool closed() const override;

private:
    [[nodiscard]] bool try_push(uint64_t token);

    mutable std::mutex mutex_;
    std::vector<uint64_t> tokens_;
    std::atomic<size_t> size_{0};
    Descriptor event_ = Descriptor::event();
    bool closed_ = false;
};

} // namespace zerohop
