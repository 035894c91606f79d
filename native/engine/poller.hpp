// Decides which thread polls, and how the others sleep.
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

// Paces a thread that spins. The kernel likes to put a woken process on the processor of its waker, where it waits
// until the waker stops spinning. So a spinning thread lets others go first after it has woken a peer, and now and then
// when the answer does not come at once.
class Turns {
public:
    // Call it when a look found something.
    void found() { next_yield_ns_ = 0; }
    // Call it when a look found nothing. `woke_peer`: a peer that slept was woken since the last turn.
    void pass(uint64_t now, bool woke_peer);

private:
    uint64_t interval_ns_ = 0;
    uint64_t next_yield_ns_ = 0;
};

class Poller {
public:
    // `finished` is notified at the end of each operation.
    Poller(Pollable& work, Presence& presence, EventCount& finished, uint64_t spin_ns);
    ~Poller() { stop(); }
    void start();
    // Ends the progress thread. Callers that wait return when their deadline passes or their condition holds.
    void stop();
    // For a forked child: forgets the thread, which does not exist there.
    void abandon();

    // Polls or sleeps until done() or the deadline (0: none), and returns whether done() held. With may_sleep false it
    // spins for spin_ns and gives up. done() is called many times, also after it held, and does not throw.
    bool wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep);
    // Notes the time, so that a short wait() need not read the clock, which takes a good part of it.
    void note_time(uint64_t now) { seen_ns_.store(now, std::memory_order_relaxed); }
    // Runs f while nobody polls.
    void exclusive(const std::function<void()>& f);
    // Wakes the sleeper, because there is work.
    void kick() { kick_for(Kick::work); }
    // Takes one look if nobody polls, which saves the wake-up of the thread that does; wakes it otherwise.
    void look_or_kick();
    // Wakes a caller that sleeps. Call it if another thread than the poller has ended something.
    void wake_sleeping_caller();
    // Wakes a sleeper that would sleep for longer than `limit_ns` from `now`, so that it sleeps for less.
    void limit_sleep(uint64_t now, uint64_t limit_ns);
    // Wakes the sleeper when the descriptor is readable (or writable, while asked for).
    void watch(int fd);
    void watch_writable(int fd, bool writable);
    void unwatch(int fd);
    // Watches a device's descriptor. It tells only what happens after it was armed, so it stays on while callers poll.
    void watch_device(int fd);
    void unwatch_device(int fd);
    // Tells whether any descriptor is ready; their endpoints poll them.
    bool any_descriptor_ready() const;
    // For event loops that wait (LoopBell): the descriptors that a message makes readable; poll_once() takes one look
    // unless another thread polls.
    int bell_fd() const { return presence_.bell_fd(); }
    int sockets_fd() const { return descriptors_epoll_.get(); }
    void loop_listens(bool listens) { listening_loops_.fetch_add(listens ? 1 : -1, std::memory_order_seq_cst); }
    void poll_once();
    // Arms the devices, so that they wake a sleeper, and looks at what they have done until now.
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
    // Tells why the progress thread is woken: there is something to do, or its sleep is too long. `late`: its ring came
    // after the kick was taken.
    enum class Kick : uint8_t { none, late, sleep_less, work };
    // Tells how the progress thread has slept.
    struct Nap {
        bool none = false;   // there was something to do at once
        bool rung = false;   // a descriptor woke it
        bool theirs = false; // its time was up, and callers that come and go see to the work
    };

    void enter(uint64_t now);
    void leave(uint64_t now);
    void run();
    // Both take and return the last reading of the clock.
    [[nodiscard]] uint64_t poll_until(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns,
                                      bool may_sleep, uint64_t now);
    [[nodiscard]] uint64_t poll_and_hand_over(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns,
                                              bool may_sleep, uint64_t now);
    [[nodiscard]] bool sleep_as_caller(const std::function<bool()>& done, uint64_t deadline_ns);
    void kick_for(Kick what);
    void kick_progress(Kick what);
    void spin_as_progress();
    void watch_descriptors_if_no_caller();
    void let_loop_go_first();
    void sleep_for_others(uint64_t now);
    [[nodiscard]] bool glance(const std::function<bool()>& done);
    [[nodiscard]] bool looks_in_time(uint64_t now);
    [[nodiscard]] bool callers_are_quick(uint64_t now) const;
    [[nodiscard]] bool try_polling();
    [[nodiscard]] uint64_t recent_left(uint64_t now) const;
    [[nodiscard]] uint64_t streak_left(uint64_t now);
    [[nodiscard]] bool sleep_in_pieces(uint64_t limit_ns);
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

    OrderedSpinLock polling_; // the thread that polls holds it for long: others only try
    Turns turns_;             // of the thread that holds polling_
    std::atomic<int> callers_{0};
    std::atomic<int> sleeping_callers_{0};
    std::atomic<int> exclusive_{0};
    std::atomic<int> listening_loops_{0};
    std::atomic<bool> stop_{false};
    std::atomic<bool> kicked_{false};
    std::atomic<bool> work_kicked_{false};    // a kick was for work, not only to sleep less
    std::atomic<uint64_t> asked_ns_{0};       // the sleep that a kick asked for
    std::atomic<bool> progress_polls_{false}; // the progress thread holds polling_
    // When the progress thread, and the caller that sleeps, wake by themselves; 0 while they do not sleep.
    std::atomic<uint64_t> wakes_at_{0};
    std::atomic<uint64_t> caller_wakes_at_{0};
    std::atomic<uint64_t> sleeps_{0};
    uint64_t next_tick_ = 0;
    EventCount parked_;

    SpinLock descriptors_lock_;
    std::atomic<int> descriptors_{0};
    std::atomic<int> devices_{0};
    std::atomic<uint64_t> seen_ns_{0};            // a recent reading of the clock
    std::atomic<uint64_t> last_left_ns_{0};       // when a caller last stopped polling
    std::atomic<int> late_{0};                    // callers in a row that came later than kSoon
    std::atomic<int> quick_{0};                   // callers in a row that came within kQuickly
    std::atomic<bool> descriptors_watched_{true}; // written under the lock
    Descriptor kick_fd_;
    Descriptor descriptors_epoll_; // the sockets
    Descriptor progress_epoll_;    // kick, doorbell, and the sockets while no caller polls
    Descriptor caller_epoll_;      // doorbell and sockets
    std::atomic<bool> started_{false};
    std::thread thread_;
};

} // namespace zerohop
