// Calls that a GPU's driver makes only once nothing is queued on any stream of the device: those that free memory,
// close what was imported, unregister host memory, and load kernels. While one waits for that, the driver lets hardly
// any other call of the process in. So none may begin while a stream waits for what takes such a call to bring about,
// and nobody waits for one who is needed for that.
//
// Seen on an H200 with driver 580; CUDA's documentation speaks of "implicit synchronization".
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <sys/types.h>

namespace zerohop::accel {

class IdleCalls {
public:
    // The process's: a forked child has its own.
    [[nodiscard]] static IdleCalls& of_process();

    // Calls it, after all that came before and while no Hold lives, on a thread that lives as long as there is
    // something to do. What the call holds goes on that thread, too. Its number.
    uint64_t later(std::function<void()> call);
    // The number of what came last.
    [[nodiscard]] uint64_t last() const;
    // Whether all has been done up to that number, by `patience_ns` from now at the latest. Not waited for is what
    // cannot begin yet, and what has taken longer than that by itself.
    [[nodiscard]] bool done(uint64_t number, uint64_t patience_ns);
    // Until all has been done up to that number, however long that takes.
    void wait(uint64_t number);

    // The process ends, and the driver with it: what comes from now on is not called.
    void end();

    // A stream is made to wait for something that is not on its device; for as long as one lives no call begins. Its
    // constructor waits for a call that is under way, which ends by itself, as no stream waits.
    class Hold {
    public:
        Hold();
        ~Hold() { end(); }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;
        void end();

    private:
        IdleCalls& calls_;
        std::once_flag ended_;
    };

private:
    IdleCalls();
    void start(); // with the lock
    void work();
    [[nodiscard]] bool is_done(uint64_t number) const;

    const pid_t process_;
    mutable std::mutex mutex_;
    std::condition_variable came_;
    std::condition_variable went_;
    std::deque<std::function<void()>> calls_;
    uint64_t given_ = 0;
    uint64_t done_ = 0;
    uint64_t begun_ns_ = 0; // when the call under way began; 0: none is
    uint64_t holds_ = 0;
    bool working_ = false;
    bool ended_ = false;
};

} // namespace zerohop::accel
