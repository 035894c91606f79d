// Who polls, and how the others sleep.
//
// At most one thread of a Context polls at any moment. A caller that waits takes polling over, spins, and then sleeps
// on the doorbell itself; the progress thread polls only while no caller waits, and parks while one sleeps. On two
// cores a second spinning thread costs a factor of thousands, so nobody ever spins beside another.
#pragma once

#include "base/clock.hpp"
#include "base/descriptor.hpp"
#include "base/pollable.hpp"
#include "base/sync.hpp"
#include "operation/presence.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace zerohop {

// One turn of spinning after another, for whoever polls. The kernel likes to put a process that was woken on the
// processor of the one that woke it, where it stands in line until that one stops spinning: so let others go first
// after waking a peer, and now and then when the answer does not come at once.
class Turns {
public:
    // Something came.
    void found() { next_yield_ns_ = 0; }
    // Nothing came; `woke_peer`: a peer that slept was woken since the last turn.
    void pass(uint64_t now, bool woke_peer);

private:
    uint64_t interval_ns_ = 0;
    uint64_t next_yield_ns_ = 0;
};

class Poller {
public:
    // `finished` is notified by whoever ends an operation.
    Poller(Pollable& work, Presence& presence, EventCount& finished, uint64_t spin_ns);
    ~Poller();
    void start();
    // Ends the progress thread. Callers that wait return when their deadline passes or their condition holds.
    void stop();
    // In a forked child: forgets the thread that does not exist there.
    void abandon();

    // Polls or sleeps until done() or the deadline (0: none); whether done() held. With may_sleep false it only spins
    // for spin_ns and gives up. done() is called many times, also after it held, and does not throw.
    bool wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep);
    // What the clock says, from whoever has just read it: to do so costs a good part of what a short wait() takes.
    void note_time(uint64_t now) { seen_ns_.store(now, std::memory_order_relaxed); }
    // Runs f while nobody polls.
    void exclusive(const std::function<void()>& f);
    // Whoever sleeps looks at the world again: there is work.
    void kick();
    // To be called when something ended that the poller did not end itself.
    void wake_sleeping_caller();
    // Wakes whoever sleeps for longer than `limit_ns` from `now`, to sleep for less.
    void limit_sleep(uint64_t now, uint64_t limit_ns);
    // Wakes the sleeper when the descriptor is readable (or writable, while asked for).
    void watch(int fd);
    void watch_writable(int fd, bool writable);
    void unwatch(int fd);
    // The same for a device's descriptor, which tells only what happens after it was armed: so it need not be turned
    // off and on for each caller.
    void watch_device(int fd);
    void unwatch_device(int fd);
    // Ready descriptors are polled by their endpoints; this only tells whether there are any.
    bool any_descriptor_ready() const;
    // For event loops that wait, see LoopBell: what a message makes readable, and a pass unless somebody else polls.
    int doorbell_fd() const { return presence_.doorbell_fd(); }
    int sockets_fd() const { return descriptors_epoll_.get(); }
    void loop_listens(bool listens) { listening_loops_.fetch_add(listens ? 1 : -1, std::memory_order_seq_cst); }
    void poll_once();
    // From now on somebody is woken by what a device does, and what it has done is looked at.
    void arm_devices();
    [[nodiscard]] bool anybody_waits() const { return callers_.load(std::memory_order_seq_cst) != 0; }
    [[nodiscard]] bool devices_unarmed() { return work_.unarmed(); }
    bool anything_watched() const { return descriptors() != 0 || devices_.load(std::memory_order_relaxed) != 0; }
    int descriptors() const { return descriptors_.load(std::memory_order_relaxed); }
    uint64_t spin_ns() const { return spin_ns_; }
    uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
    // When the progress thread wakes by itself; 0 while it does not sleep.
    uint64_t wakes_at() const { return wakes_at_.load(std::memory_order_seq_cst); }

private:
    // What the progress thread is woken for: something to do, or only a shorter sleep.
    enum class Kick : uint8_t { none, sleep_less, work };
    // How it slept.
    struct Nap {
        bool none = false;   // there was something to do at once
        bool rung = false;   // and not only its time was up
        bool theirs = false; // its time was up, and callers come and go
    };

    void enter(uint64_t now);
    void leave(uint64_t now);
    void run();
    // Both take and return what the clock said last: to read it costs a good part of what a small operation does.
    [[nodiscard]] uint64_t poll_until(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns,
                                      bool may_sleep, uint64_t now);
    [[nodiscard]] uint64_t poll_and_hand_over(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns,
                                              bool may_sleep, uint64_t now);
    void sleep_as_caller(const std::function<bool()>& done, uint64_t deadline_ns);
    void kick_for(Kick what);
    void kick_progress(Kick what);
    void spin_as_progress();
    void watch_descriptors_if_no_caller();
    void let_loop_go_first();
    void sleep_for_others(uint64_t now);
    [[nodiscard]] bool glance(const std::function<bool()>& done);
    [[nodiscard]] bool looks_in_time(uint64_t now);
    [[nodiscard]] bool try_polling();
    [[nodiscard]] uint64_t recent_left(uint64_t now) const;
    [[nodiscard]] uint64_t streak_left(uint64_t now);
    [[nodiscard]] Nap nap(uint64_t linger_until);
    [[nodiscard]] Kick take_kick(bool rung);
    void take_rings(bool by_peer);
    bool park_if_caller_sleeps();
    void tick_when_due(uint64_t now);
    void poll_and_leave(uint64_t now);

    Pollable& work_;
    Presence& presence_;
    EventCount& finished_;
    const uint64_t spin_ns_;

    OrderedSpinLock polling_; // held for long by who polls: others only try
    Turns turns_;             // of whoever holds polling_
    std::atomic<int> callers_{0};
    std::atomic<int> sleeping_callers_{0};
    std::atomic<int> exclusive_{0};
    std::atomic<int> listening_loops_{0};
    std::atomic<bool> stop_{false};
    std::atomic<bool> kicked_{false};
    std::atomic<bool> work_kicked_{false};    // and not only to sleep less:
    std::atomic<uint64_t> asked_ns_{0};       // by so much
    std::atomic<bool> progress_polls_{false}; // it is the progress thread that holds polling_
    // When the progress thread, and the caller that sleeps, wake by themselves; 0 while they do not sleep.
    std::atomic<uint64_t> wakes_at_{0};
    std::atomic<uint64_t> caller_wakes_at_{0};
    std::atomic<uint64_t> sleeps_{0};
    uint64_t next_tick_ = 0;
    EventCount parked_;

    SpinLock descriptors_lock_;
    std::atomic<int> descriptors_{0};
    std::atomic<int> devices_{0};
    std::atomic<uint64_t> seen_ns_{0};            // what the clock said not long ago
    std::atomic<uint64_t> last_left_ns_{0};       // when a caller last stopped polling
    std::atomic<int> late_{0};                    // how many in a row came late after the one before
    std::atomic<bool> descriptors_watched_{true}; // written under the lock
    Descriptor kick_fd_;
    Descriptor descriptors_epoll_; // the sockets
    Descriptor progress_epoll_;    // kick, doorbell, and the sockets while no caller polls
    Descriptor caller_epoll_;      // doorbell and sockets
    std::atomic<bool> started_{false};
    std::thread thread_;
};

} // namespace zerohop
