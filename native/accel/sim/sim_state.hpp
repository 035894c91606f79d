// Holds the state that the driver, its devices and their streams share.
#pragma once

#include "accel/sim/sim.hpp"
#include "accel/sim/sim_memory.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace zerohop::accel::sim {

using Clock = std::chrono::steady_clock;

inline constexpr Outcome kDeviceLost{Status::device_error, Reason::device_lost};

// Wakes streams that sleep in the middle of a command: in a wait32 or an emulated delay. The whole driver has one bell,
// because a stream of one device may write the word that a stream of another waits for.
class Bell {
public:
    // Wakes the sleepers; call it after the change that they wait for. Costs one atomic operation if nobody sleeps.
    void ring() {
        // A read-modify-write, not a load: it is ordered with the increment in `sleep_until`, so that either this call
        // sees the sleeper or the sleeper's test sees the change.
        if (sleepers_.fetch_add(0, std::memory_order_acq_rel) == 0) {
            return;
        }
        {
            const std::lock_guard lock(mutex_);
        } // a sleeper that has tested too early is waiting by now
        woken_.notify_all();
    }

    // Sleeps until `ended()` is true when tested, or the deadline passes. `ended` must not block.
    template <typename Ended> void sleep_until(Clock::time_point deadline, Ended ended) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_acq_rel);
        woken_.wait_until(lock, deadline, ended);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

private:
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable woken_;
};

struct SimState {
    explicit SimState(int devices) : memory(devices) {}

    SimMemory memory;
    Bell bell;
};

class StreamCore;

struct DeviceState {
    DeviceState(int number, std::shared_ptr<SimState> state) : index(number), shared(std::move(state)) {}

    const int index;
    const std::shared_ptr<SimState> shared;
    std::atomic<bool> lost{false};
    std::array<std::atomic<int>, 3> faults{}; // still to come: alloc, copy, link
    std::atomic<uint64_t> ns_per_copy{0};
    std::atomic<uint64_t> bytes_per_us{0};
    std::mutex streams_mutex;
    std::vector<StreamCore*> streams; // streams that still take commands

    // Uses up one injected fault, if there is one.
    bool take(SimFault fault) {
        std::atomic<int>& count = faults.at(static_cast<size_t>(fault));
        int left = count.load(std::memory_order_relaxed);
        while (left > 0 && !count.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
        }
        return left > 0;
    }
};

} // namespace zerohop::accel::sim
