// Memory that operations may be using: it can be closed at any time, and is given back when the last user lets go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace zerohop {

// One word holds all: how many pins there are, and whether it is closed, or without an owner.
class Pinnable {
public:
    virtual ~Pinnable() = default;

    // False once closed: a new operation must not begin.
    [[nodiscard, gnu::always_inline]] bool try_pin() {
        if ((word_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) {
            return true;
        }
        unpin();
        return false;
    }
    void pin_again() { word_.fetch_add(1, std::memory_order_relaxed); }
    [[gnu::always_inline]] void unpin() {
        if ((word_.fetch_sub(1, std::memory_order_acq_rel) & (kOrphan | kPins)) == (kOrphan | 1)) {
            delete this;
        }
    }

    // No operation begins after this; true once none is left that began before.
    bool close() { return (word_.fetch_or(kClosed, std::memory_order_acq_rel) & kPins) == 0; }
    bool closed() const { return (word_.load(std::memory_order_acquire) & kClosed) != 0; }
    uint64_t pins() const { return word_.load(std::memory_order_acquire) & kPins; }

    // What its owners let go of it with: it goes with the last pin.
    struct Orphan {
        void operator()(Pinnable* object) const {
            if ((object->word_.fetch_or(kOrphan, std::memory_order_acq_rel) & kPins) == 0) {
                delete object;
            }
        }
    };

private:
    static constexpr uint64_t kOrphan = uint64_t{1} << 63;
    static constexpr uint64_t kClosed = uint64_t{1} << 62;
    static constexpr uint64_t kPins = kClosed - 1;
    std::atomic<uint64_t> word_{0};
};

// One that may be pinned. (std::make_shared would take it away under its pins.)
template <class T, class... Arguments> [[nodiscard]] std::shared_ptr<T> make_pinnable(Arguments&&... arguments) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), Pinnable::Orphan{});
}

// Holds a pin, and with it the object itself: cheaper than another owner.
template <class T> class Pin {
public:
    Pin() = default;
    // A copy of a pin pins again, whether or not the target has been closed since.
    Pin(const Pin& other) : target_(other.target_) {
        if (target_ != nullptr) {
            target_->pin_again();
        }
    }
    Pin(Pin&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    Pin& operator=(Pin other) noexcept {
        std::swap(target_, other.target_);
        return *this;
    }
    ~Pin() { reset(); }

    // Empty when the target is closed or null.
    [[nodiscard]] static Pin of(const std::shared_ptr<T>& target) {
        Pin pin;
        (void)pin.pin(target);
        return pin;
    }
    // To be called on an empty one; false, and still empty, when the target is closed or null.
    [[nodiscard, gnu::always_inline]] bool pin(const std::shared_ptr<T>& target) {
        if (target && target->try_pin()) {
            target_ = target.get();
        }
        return target_ != nullptr;
    }
    [[gnu::always_inline]] void reset() {
        if (target_ != nullptr) {
            std::exchange(target_, nullptr)->unpin();
        }
    }
    T* operator->() const { return target_; }
    T& operator*() const { return *target_; }
    explicit operator bool() const { return target_ != nullptr; }

private:
    T* target_ = nullptr;
};

} // namespace zerohop
