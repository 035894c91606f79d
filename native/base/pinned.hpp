// Counts the operations that use a piece of memory, so that it can be closed at any time and is freed after the last
// one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace zerohop {

// An object that operations pin. One atomic word holds the number of pins and two flags: closed, and without an owner.
class Pinnable {
public:
    virtual ~Pinnable() = default;

    // Pins the object for a new operation; false if it is closed.
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

    // Lets no new operation begin; true if none that began before is left.
    bool close() { return (word_.fetch_or(kClosed, std::memory_order_acq_rel) & kPins) == 0; }
    bool closed() const { return (word_.load(std::memory_order_acquire) & kClosed) != 0; }
    uint64_t pins() const { return word_.load(std::memory_order_acquire) & kPins; }

    // The deleter of the owners' shared_ptr: deletes the object now, or leaves that to the last pin.
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

// Makes an object that may be pinned. (std::make_shared would free it although it still has pins.)
template <class T, class... Arguments> [[nodiscard]] std::shared_ptr<T> make_pinnable(Arguments&&... arguments) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), Pinnable::Orphan{});
}

// Holds a pin, which keeps the object alive and costs less than another shared_ptr.
template <class T> class Pin {
public:
    Pin() = default;
    // Pins again, even if the target has been closed since.
    Pin(const Pin& other) : target_(other.target_) {
        if (target_ != nullptr) {
            target_->pin_again();
        }
    }
    Pin(Pin&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    template <class U>
        requires std::is_convertible_v<U*, T*>
    // NOLINTNEXTLINE(google-explicit-constructor): a pin of an object is one of its base class, too, as a pointer is
    Pin(Pin<U>&& other) noexcept : target_(std::exchange(other.target_, nullptr)) {}
    Pin& operator=(Pin other) noexcept {
        std::swap(target_, other.target_);
        return *this;
    }
    ~Pin() { reset(); }

    // Returns a pin, empty if the target is closed or null.
    [[nodiscard]] static Pin of(const std::shared_ptr<T>& target) {
        Pin pin;
        (void)pin.pin(target);
        return pin;
    }
    // Fills this pin, which must be empty; false, and still empty, if the target is closed or null.
    [[nodiscard, gnu::always_inline]] bool pin(const std::shared_ptr<T>& target) {
        if (!target || !target->try_pin()) {
            return false;
        }
        target_ = target.get();
        return true;
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
    template <class U> friend class Pin;
    T* target_ = nullptr;
};

} // namespace zerohop
