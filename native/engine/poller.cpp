// Callers that wait: how one of them polls for all, when it sleeps, and how it hands polling over.
#include "engine/poller.hpp"

#include "engine/sleep.hpp"
#include "engine/tuning.hpp"

#include <algorithm>
#include <sched.h>

namespace zerohop {

void Turns::pass(uint64_t now, bool woke_peer) {
    if (next_yield_ns_ == 0) {
        interval_ns_ = kFirstYield;
        next_yield_ns_ = now + kFirstYield;
    }
    if (now < next_yield_ns_ && !woke_peer) {
        cpu_pause();
        return;
    }
    sched_yield();
    next_yield_ns_ = now_ns() + interval_ns_;
    interval_ns_ = std::min(2 * interval_ns_, kTick); // nobody in line had anything for this thread
}

void Poller::enter(uint64_t now) {
    if (callers_.fetch_add(1, std::memory_order_seq_cst) == 0) {
        const uint64_t last_left = last_left_ns_.load(std::memory_order_relaxed);
        const bool late = now >= last_left + kSoon;
        const bool quick = now < last_left + kQuickly;
        quick_.store(quick ? std::min(kQuickCallers, quick_.load(std::memory_order_relaxed) + 1) : 0,
                     std::memory_order_relaxed);
        late_.store(late ? std::min(kLate, late_.load(std::memory_order_relaxed) + 1) : 0, std::memory_order_relaxed);
    }
    watch_descriptors_if_no_caller();
}

void Poller::leave(uint64_t now) {
    if (callers_.fetch_sub(1, std::memory_order_seq_cst) != 1) {
        return;
    }
    watch_descriptors_if_no_caller();
    last_left_ns_.store(now, std::memory_order_relaxed);
    if (late_.load(std::memory_order_relaxed) >= kLate) {
        arm_devices();
    }
    sleep_for_others(now);
}

// Tries while the holder of the right to poll may leave sooner than this thread would fall asleep: the progress thread
// leaves when a caller has come, and a caller may only take a glance.
bool Poller::try_polling() {
    for (int spins = 0; spins < kTurnSpins; ++spins) {
        if (polling_.try_lock()) {
            return true;
        }
        cpu_pause();
    }
    return false;
}

// Returns true if the next caller is to be expected sooner than a thread could be woken.
bool Poller::callers_are_quick(uint64_t now) const {
    return quick_.load(std::memory_order_relaxed) >= kQuickCallers &&
           now < last_left_ns_.load(std::memory_order_relaxed) + kPause &&
           listening_loops_.load(std::memory_order_seq_cst) == 0;
}

// Sees to sleep and wake-ups as the last thread stops polling.
void Poller::sleep_for_others(uint64_t now) {
    if (callers_are_quick(now)) {
        const uint64_t wakes_at = wakes_at_.load(std::memory_order_seq_cst);
        if (wakes_at != 0 && wakes_at <= now + kPause) {
            return; // the progress thread looks soon, and no peer need ring before
        }
        limit_sleep(now, kPause);
    }
    presence_.set_sleeping(true);
    if (looks_in_time(now)) {
        return;
    }
    const Left left = work_.left(now);
    // Work that came before the flag was set rang no doorbell.
    if (left.ready) {
        kick();
    } else {
        limit_sleep(now, left.unarmed ? std::min(kStreak, left.sleep_limit_ns) : left.sleep_limit_ns);
    }
}

// Arms, and looks: what came before a device was armed wakes nobody. If another thread polls now, it looks again, or
// learns before it sleeps that nobody has looked yet.
void Poller::arm_devices() {
    if (devices_unarmed() && work_.arm(false) && polling_.try_lock()) {
        poll_and_leave(now_ns());
        if (devices_unarmed()) {
            kick(); // there was more than one look takes
        }
    }
}

void Poller::tick_when_due(uint64_t now) {
    if (now >= next_tick_) {
        next_tick_ = now + kTick;
        work_.tick(now);
    }
}

// Takes one look, for a thread that has just got the right to poll. `now` may be past.
void Poller::poll_and_leave(uint64_t now) {
    work_.poll();
    if (now >= next_tick_) {
        tick_when_due(now_ns());
    }
    polling_.unlock();
    finished_.notify_all(); // another caller may have come meanwhile
}

// A thread that has just posted mostly finds the answer there. If callers come and go, and the progress thread will
// look in time at what may be left, one look needs none of the signals that say that somebody polls, and no longer
// does. The time that it goes by may be past: then all of this holds for a shorter time.
bool Poller::glance(const std::function<bool()>& done) {
    const uint64_t now = seen_ns_.load(std::memory_order_relaxed);
    if (now >= last_left_ns_.load(std::memory_order_relaxed) + kSoon || !looks_in_time(now) ||
        exclusive_.load(std::memory_order_seq_cst) != 0 || !polling_.try_lock()) {
        return false;
    }
    poll_and_leave(now);
    if (!done() || !looks_in_time(now)) {
        return false;
    }
    late_.store(0, std::memory_order_relaxed);
    last_left_ns_.store(now, std::memory_order_relaxed);
    return true;
}

// Returns true if the progress thread wakes before anything that the last look left can matter.
bool Poller::looks_in_time(uint64_t now) {
    const uint64_t wakes_at = wakes_at_.load(std::memory_order_seq_cst);
    return wakes_at != 0 && wakes_at <= now + work_.may_wait_ns();
}

bool Poller::wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep) {
    if (done()) {
        return true;
    }
    if (glance(done)) {
        return true;
    }
    uint64_t now = now_ns();
    note_time(now);
    const uint64_t spin_end = now + spin_ns;
    enter(now);
    for (;;) {
        if (progress_polls_.load(std::memory_order_relaxed) ? try_polling() : polling_.try_lock()) {
            now = poll_and_hand_over(done, deadline_ns, spin_ns, may_sleep, now);
        } else if (!may_sleep) {
            // The holder may have been displaced by a thread that spins as this one does, in the peer perhaps.
            sched_yield();
        } else {
            const uint32_t ticket = finished_.prepare();
            if (done()) {
                finished_.cancel();
            } else if (polling_.try_lock()) { // the poller left before this thread stood in line
                finished_.cancel();
                now = poll_and_hand_over(done, deadline_ns, spin_ns, may_sleep, now);
            } else {
                now = now_ns();
                const uint64_t left = deadline_ns == 0 ? kSecond : deadline_ns - std::min(deadline_ns, now);
                finished_.wait(ticket, std::min(left, kSecond));
                now = now_ns();
            }
        }
        const bool is_done = done();
        if (!is_done) {
            now = now_ns();
        }
        if (is_done || (deadline_ns != 0 && now >= deadline_ns) || (!may_sleep && now >= spin_end)) {
            leave(now);
            return is_done;
        }
        while (exclusive_.load(std::memory_order_seq_cst) != 0) {
            nap_shortly();
        }
    }
}

uint64_t Poller::poll_and_hand_over(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns,
                                    bool may_sleep, uint64_t now) {
    now = poll_until(done, deadline_ns, spin_ns, may_sleep, now);
    polling_.unlock();
    finished_.notify_all(); // another caller may take over
    return now;
}

uint64_t Poller::poll_until(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep,
                            uint64_t now) {
    presence_.set_sleeping(false); // not earlier: another caller may have been asleep with the right to poll
    uint64_t spin_end = now + spin_ns;
    while (exclusive_.load(std::memory_order_relaxed) == 0) {
        const bool did = work_.poll() != Found::nothing;
        if (did) {
            turns_.found();
        }
        if (done()) {
            tick_when_due(now); // also for a caller that always finds an answer at once
            return now;
        }
        now = now_ns();
        tick_when_due(now);
        if (deadline_ns != 0 && now >= deadline_ns) {
            return now;
        }
        if (did && may_sleep) {
            spin_end = now + spin_ns;
        } else if (now < spin_end) {
            turns_.pass(now, presence_.take_woke_peer());
        } else if (!may_sleep) {
            return now;
        } else {
            const bool rung = sleep_as_caller(done, deadline_ns);
            now = now_ns();
            tick_when_due(now);
            spin_end = rung ? now + spin_ns : now; // what has not come for so long is not about to come
        }
    }
    return now;
}

// Returns true if something woke it, false if its time was up.
bool Poller::sleep_as_caller(const std::function<bool()>& done, uint64_t deadline_ns) {
    bool rung = false;
    // The progress thread must not take the doorbell's message: it leaves its epoll and parks.
    sleeping_callers_.fetch_add(1, std::memory_order_seq_cst);
    kick_progress(Kick::sleep_less); // it parks
    presence_.set_sleeping(true);
    // An operation that ends from here on rings; one that ended before is seen now.
    while (!done() && !work_.arm(true) && !work_.left(now_ns()).ready) {
        uint64_t now = now_ns();
        uint64_t limit = deadline_ns == 0 ? UINT64_MAX : deadline_ns - std::min(deadline_ns, now);
        const auto most = [&] {
            const Left left = work_.left(now);
            return std::min(left.sleep_limit_ns, left.caller_sleep_limit_ns);
        };
        limit = std::min(limit, most());
        caller_wakes_at_.store(limit == UINT64_MAX ? UINT64_MAX : now + limit, std::memory_order_seq_cst);
        limit = std::min(limit, most()); // a change since is seen here, or kicks
        sleeps_.fetch_add(1, std::memory_order_relaxed);
        if (exclusive_.load(std::memory_order_seq_cst) == 0) {
            rung = sleep_on(caller_epoll_.get(), limit);
        }
        caller_wakes_at_.store(0, std::memory_order_seq_cst);
        now = now_ns();
        tick_when_due(now);
        // Most sleeps end so that peers are looked at. Nobody else need know that.
        if (rung || (deadline_ns != 0 && now >= deadline_ns) || exclusive_.load(std::memory_order_seq_cst) != 0 ||
            work_.poll() != Found::nothing) {
            break;
        }
    }
    presence_.set_sleeping(false);
    presence_.drain();
    sleeping_callers_.fetch_sub(1, std::memory_order_seq_cst);
    parked_.notify_all();
    return rung;
}

void Poller::exclusive(const std::function<void()>& f) {
    struct Asked { // a guard, because nobody polls until it is taken back, and f() may throw
        explicit Asked(Poller& of) : poller(of) { poller.exclusive_.fetch_add(1, std::memory_order_seq_cst); }
        ~Asked() {
            poller.exclusive_.fetch_sub(1, std::memory_order_seq_cst);
            poller.finished_.notify_all();
        }
        Asked(const Asked&) = delete;
        Asked& operator=(const Asked&) = delete;
        Poller& poller;
    };
    const Asked asked(*this);
    kick();
    presence_.ring(); // a caller may be asleep with the right to poll
    const std::lock_guard lock(polling_);
    f();
}

void Poller::look_or_kick() {
    if (polling_.try_lock()) {
        const uint64_t now = now_ns();
        poll_and_leave(now);
        const Left left = work_.left(now);
        if (!left.ready) { // a device may have begun to copy meanwhile
            return limit_sleep(now, left.unarmed ? std::min(kStreak, left.sleep_limit_ns) : left.sleep_limit_ns);
        }
    }
    kick();
}

void Poller::poll_once() {
    callers_.fetch_add(1, std::memory_order_seq_cst); // it is none that others expect to come back soon
    watch_descriptors_if_no_caller();
    if (polling_.try_lock()) {
        presence_.set_sleeping(false);
        presence_.drain(); // nobody sleeps on it: a caller that does holds the right to poll
        poll_and_leave(now_ns());
    }
    if (callers_.fetch_sub(1, std::memory_order_seq_cst) == 1) {
        watch_descriptors_if_no_caller();
        sleep_for_others(now_ns()); // work that is left kicks the progress thread
    }
}

} // namespace zerohop
