// Defines the two waits that no standard type offers: a lock that is mostly held for a few instructions, and a wait for
// "something changed" that costs the notifier one load if nobody waits.
#pragma once

#include "base/clock.hpp"

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zerohop {

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Gives the processor away for the shortest possible time (some 70 µs, as the kernel rounds it), so that the thread
// that was displaced from it goes on. Yielding is not enough: the kernel returns at once to a thread that has just been
// woken.
inline void nap_shortly() {
    constexpr timespec kNap{0, 20'000};
    nanosleep(&kNap, nullptr);
}

// Test-and-set lock; test-and-test-and-set while it is held. After a short spin a waiter sleeps, because on a small
// machine the holder may need this core.
// kUnlock: the memory order of unlock(). With seq_cst, a thread that first announces itself and then fails in
// try_lock() is seen by the thread that unlocks.
// kInTurn: a thread that comes while others sleep lets them go first. Otherwise a thread that takes the lock again as
// soon as it has released it, and holds it for long, would leave the sleepers only a short gap to take it in.
template <std::memory_order kUnlock, bool kInTurn> class BasicSpinLock {
public:
    [[gnu::always_inline]] void lock() {
        if ((kInTurn && sleepers_.load(std::memory_order_relaxed) != 0) ||
            held_.exchange(true, std::memory_order_acquire)) {
            wait_and_lock();
        }
    }
    bool try_lock() {
        constexpr auto look =
            kUnlock == std::memory_order_seq_cst ? std::memory_order_seq_cst : std::memory_order_relaxed;
        return !held_.load(look) && !held_.exchange(true, std::memory_order_acquire);
    }
    void unlock() { held_.store(false, kUnlock); }

private:
    static constexpr int kMostNaps = 64; // some milliseconds

    [[gnu::noinline]] void wait_and_lock() {
        // A thread that lets others go first does not count as a sleeper itself: two would let each other go first for
        // ever. It naps more than once, because on a busy machine the sleepers do not get a processor within one nap.
        for (int naps = 0; kInTurn && naps < kMostNaps && sleepers_.load(std::memory_order_relaxed) != 0; ++naps) {
            nap_shortly();
        }
        bool counted = false;
        for (int spins = 0; !try_lock(); ++spins) {
            if (spins < 200) {
                cpu_pause();
                continue;
            }
            if (kInTurn && !counted) {
                counted = true;
                sleepers_.fetch_add(1, std::memory_order_relaxed);
            }
            nap_shortly();
        }
        if (counted) {
            sleepers_.fetch_sub(1, std::memory_order_relaxed);
        }
    }

    std::atomic<bool> held_{false};
    std::atomic<uint32_t> sleepers_{0};
};

using SpinLock = BasicSpinLock<std::memory_order_release, false>;
using OrderedSpinLock = BasicSpinLock<std::memory_order_seq_cst, false>;
// The lock of a lane. It is also held over system calls, because posting to some devices is one.
using LaneLock = BasicSpinLock<std::memory_order_release, true>;

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
    const timespec limit{static_cast<time_t>(timeout_ns / kSecond), static_cast<long>(timeout_ns % kSecond)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &limit, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Waits for a notification. Usage: ticket = prepare(); check the condition; wait(ticket) or cancel(). A notify_all()
// after prepare() ends the wait.
class EventCount {
public:
    uint32_t prepare() {
        waiters_.fetch_add(1, std::memory_order_seq_cst);
        return epoch_.load(std::memory_order_seq_cst);
    }
    void cancel() { waiters_.fetch_sub(1, std::memory_order_relaxed); }
    void wait(uint32_t ticket, uint64_t timeout_ns) {
        if (epoch_.load(std::memory_order_seq_cst) == ticket) {
            futex_wait(epoch_, ticket, timeout_ns);
        }
        cancel();
    }
    void notify_all() {
        if (waiters_.load(std::memory_order_seq_cst) != 0) {
            epoch_.fetch_add(1, std::memory_order_seq_cst);
            futex_wake_all(epoch_);
        }
    }

private:
    std::atomic<uint32_t> epoch_{0};
    std::atomic<uint32_t> waiters_{0};
};

} // namespace zerohop
