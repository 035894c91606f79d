// Runs the driver calls that a GPU's driver makes only once nothing is queued on any stream of the device: freeing
// memory, closing imports, unregistering host memory, and loading kernels. While such a call waits for that, the driver
// lets hardly any other call of the process in. So none may begin while a stream waits for something that itself takes
// a driver call, and a thread that is needed for that must never wait for such a call.
//
// Seen on an H200 with driver 580; CUDA's documentation speaks of "implicit synchronization".
#pragma once

#include "base/once.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <sys/types.h>

namespace zerohop::accel {

class IdleCalls {
public:
    // Returns the instance of this process; a forked child has its own.
    [[nodiscard]] static IdleCalls& of_process();

    // Queues the call and returns its number. It runs after all earlier ones and while no Hold lives, on a thread that
    // lives as long as there is something to do. Objects that the call holds are destroyed on that thread, too.
    uint64_t later(std::function<void()> call);
    // Returns the number of the last call.
    [[nodiscard]] uint64_t last() const;
    // True if all calls up to that number are done, at the latest `patience_ns` from now. It does not wait for calls
    // that cannot begin yet, or if the running call has already taken longer than that.
    [[nodiscard]] bool done(uint64_t number, uint64_t patience_ns);
    // Waits until all calls up to that number are done, however long that takes.
    void wait(uint64_t number);

    // Drops all later calls: the process ends, and the driver with it.
    void end();

    // Lives while a stream is made to wait for something that is not on its device; no call begins meanwhile. The
    // constructor waits for a running call, which ends by itself, because no stream waits yet.
    class Hold {
    public:
        Hold();
        // Does not wait: settled() does, where a kernel may run that only the caller's next steps end.
        struct AtOnce {};
        explicit Hold(AtOnce at_once);
        // Waits for the running call until the deadline (now_ns), and tells whether none runs.
        [[nodiscard]] bool settled(uint64_t deadline_ns);
        ~Hold() { end(); }
        void end();

    private:
        IdleCalls& calls_;
        Once ended_;
    };

private:
    IdleCalls();
    void start(); // the caller holds the lock
    void work();
    [[nodiscard]] bool is_done(uint64_t number) const;

    const pid_t process_;
    mutable std::mutex mutex_;
    std::condition_variable call_queued_;
    std::condition_variable call_done_;
    std::deque<std::function<void()>> calls_;
    uint64_t last_number_ = 0;
    uint64_t done_number_ = 0;
    uint64_t begun_ns_ = 0; // when the running call began; 0: none runs
    uint64_t holds_ = 0;
    bool working_ = false;
    bool ended_ = false;
};

} // namespace zerohop::accel
