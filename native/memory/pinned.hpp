// Memory that operations may be using: it can be closed at any time, and is given back when the last user lets go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace zerohop {

class Pinnable {
public:
    virtual ~Pinnable() = default;

    // False once closed: a new operation must not begin.
    bool try_pin() {
        pins_.fetch_add(1, std::memory_order_seq_cst);
        if (closed_.load(std::memory_order_seq_cst)) {
            unpin();
            return false;
        }
        return true;
    }
    void pin_again() { pins_.fetch_add(1, std::memory_order_relaxed); }
    void unpin() { pins_.fetch_sub(1, std::memory_order_release); }

    // No operation begins after this; true once none is left that began before.
    bool close() {
        closed_.store(true, std::memory_order_seq_cst);
        return pins_.load(std::memory_order_seq_cst) == 0;
    }
    bool closed() const { return closed_.load(std::memory_order_acquire); }
    uint64_t pins() const { return pins_.load(std::memory_order_acquire); }

private:
    std::atomic<uint64_t> pins_{0};
    std::atomic<bool> closed_{false};
};

// Holds a pin and the object itself.
template <class T> class Pin {
public:
    Pin() = default;
    // A copy of a pin pins again, whether or not the target has been closed since.
    Pin(const Pin& other) : target_(other.target_) {
        if (target_) {
            target_->pin_again();
        }
    }
    Pin(Pin&& other) noexcept : target_(std::move(other.target_)) {}
    Pin& operator=(Pin other) noexcept {
        std::swap(target_, other.target_);
        return *this;
    }
    ~Pin() { reset(); }

    // Empty when the target is closed or null.
    [[nodiscard]] static Pin of(const std::shared_ptr<T>& target) {
        Pin pin;
        if (target && target->try_pin()) {
            pin.target_ = target;
        }
        return pin;
    }
    void reset() {
        if (target_) {
            target_->unpin();
            target_.reset();
        }
    }
    T* operator->() const { return target_.get(); }
    T& operator*() const { return *target_; }
    explicit operator bool() const { return target_ != nullptr; }

private:
    std::shared_ptr<T> target_;
};

} // namespace zerohop
