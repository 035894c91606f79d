// Holds words of pinned memory that streams wait for.
#pragma once

#include "accel/gpu/gpu_device.hpp"
#include "accel/idle_calls.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace zerohop::accel::gpu {

// A word of the pool. Its value only grows, so that a stream that still waits for an older value goes on, too.
class PooledWord {
public:
    explicit PooledWord(std::shared_ptr<DeviceState> device)
        : device_(std::move(device)), word_(device_->words->take(device_->api)) {
        if (word_ == nullptr) {
            throw NativeError(Status::no_memory, Reason::alloc_failed, "no pinned memory for a stream to wait on");
        }
        value_ = word_->load(std::memory_order_relaxed) + 1;
    }
    ~PooledWord() {
        if (!by_device_ || written_by_device()) {
            device_->words->give(word_);
        }
    }
    PooledWord(const PooledWord&) = delete;
    PooledWord& operator=(const PooledWord&) = delete;

    [[nodiscard]] uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
    // Returns the value to wait for; a greater one ends the wait, too.
    [[nodiscard]] uint32_t value() const { return value_; }
    // Call when a device is told to write the word: it goes back to the pool only after that write.
    void expect_device() { by_device_ = true; }
    [[nodiscard]] bool written_by_device() const { return word_->load(std::memory_order_acquire) == value_; }
    // Releases the waiters, unless a device has already. If a device has yet to write, this writes one more than
    // value(); the device's later write takes that one back, and so shows that it has happened.
    void write() {
        uint32_t before = value_ - 1;
        word_->compare_exchange_strong(before, by_device_ ? value_ + 1 : value_, std::memory_order_release,
                                       std::memory_order_relaxed);
    }

private:
    const std::shared_ptr<DeviceState> device_;
    std::atomic<uint32_t>* word_ = nullptr;
    uint32_t value_ = 0;
    bool by_device_ = false;
};

class WordGate final : public Gate {
public:
    explicit WordGate(std::shared_ptr<DeviceState> device) : word(std::move(device)) {}
    ~WordGate() override { WordGate::open(); }
    void open() override {
        word.write();
        hold.end();
    }

    IdleCalls::Hold hold; // declared first: it must exist before anything that a stream may wait for
    PooledWord word;
};

} // namespace zerohop::accel::gpu
