// The two waits of the data plane that no standard type gives: a lock held for less time than a system call, and a
// wait for "something changed" that costs its notifier one load when nobody waits.
#pragma once

#include "engine/clock.hpp"

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sched.h>
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

// Test-and-set, and while it is held test-and-test-and-set. After a short spin it yields, because on a small machine
// the holder may need this core.
class SpinLock {
public:
    [[gnu::always_inline]] void lock() {
        if (held_.exchange(true, std::memory_order_acquire)) {
            wait_and_lock();
        }
    }
    bool try_lock() {
        return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire);
    }
    void unlock() { held_.store(false, std::memory_order_release); }

private:
    [[gnu::noinline]] void wait_and_lock() {
        for (int spins = 0; !try_lock(); ++spins) {
            if (spins < 200) {
                cpu_pause();
            } else {
                sched_yield();
            }
        }
    }

    std::atomic<bool> held_{false};
};

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
    const timespec limit{static_cast<time_t>(timeout_ns / kSecond), static_cast<long>(timeout_ns % kSecond)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &limit, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Usage: ticket = prepare(); check the condition; wait(ticket) or cancel(). A notify after prepare() ends the wait.
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
