// The thread that polls while no caller does: its life, when it wakes, and when it gives way.
#include "base/thread_start.hpp"
#include "engine/poller.hpp"
#include "engine/sleep.hpp"
#include "engine/tuning.hpp"

#include <algorithm>
#include <poll.h>
#include <pthread.h>
#include <utility>

namespace zerohop {

void Poller::start() {
    thread_ = std::thread([this] {
        prepare_for_exceptions();
        run();
    });
    pthread_setname_np(thread_.native_handle(), "zerohop-poll");
    started_.wait(false); // a peer that looks must find the futex held
}

void Poller::stop() {
    stop_.store(true, std::memory_order_seq_cst);
    kick_progress(Kick::work);
    wake_sleeping_caller();
    parked_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Poller::abandon() {
    stop_.store(true);
    if (thread_.joinable()) {
        // Leaked, not detached: the C library must not touch a thread that this process lacks.
        static_cast<void>(new std::thread(std::move(thread_)));
    }
    for (Descriptor* fd : {&kick_fd_, &descriptors_epoll_, &progress_epoll_, &caller_epoll_}) {
        fd->reset();
    }
}

// The message woke an event loop, too. The loop gets it sooner when it polls by itself, and this thread would only hold
// it up; but it may be busy with something else.
void Poller::let_loop_go_first() {
    pollfd entry{kick_fd_.get(), POLLIN, 0};
    const timespec limit = duration(kLoopFirst);
    ppoll(&entry, 1, &limit, nullptr);
}

// Returns for how long the next caller is awaited, who would do the work; 0: callers no longer come and go.
uint64_t Poller::recent_left(uint64_t now) const {
    const uint64_t until = last_left_ns_.load(std::memory_order_relaxed) + kStreak;
    return now < until ? until - now : 0;
}

// Like recent_left(), but only while devices are unarmed, which this thread must arm if no caller comes. 0: no streak.
uint64_t Poller::streak_left(uint64_t now) {
    return late_.load(std::memory_order_relaxed) < kLate && devices_unarmed() ? recent_left(now) : 0;
}

// A program that closes descriptors it does not own closes what wakes this thread: it looks for kicks by itself, too.
bool Poller::sleep_in_pieces(uint64_t limit_ns) {
    for (; limit_ns > kPieceOfSleep && !kicked_.load(std::memory_order_seq_cst); limit_ns -= kPieceOfSleep) {
        if (sleep_on(progress_epoll_.get(), kPieceOfSleep)) {
            return true;
        }
    }
    return sleep_on(progress_epoll_.get(), kicked_.load(std::memory_order_seq_cst) ? 0 : limit_ns);
}

Poller::Nap Poller::nap(uint64_t linger_until) {
    Nap nap;
    const uint64_t now = now_ns();
    const uint64_t linger = linger_until == 0 ? UINT64_MAX : linger_until - std::min(linger_until, now);
    // A caller that polls for long arms devices before it sleeps, and kicks when it leaves.
    const uint64_t streak = streak_left(now);
    const uint64_t pause = callers_are_quick(now) ? kPause : UINT64_MAX;
    const bool armed_late = streak == 0 && callers_.load(std::memory_order_seq_cst) == 0 && work_.arm(false);
    const uint64_t limit = std::min({work_.left(now).sleep_limit_ns, linger, pause, streak != 0 ? streak : UINT64_MAX});
    wakes_at_.store(limit == UINT64_MAX ? UINT64_MAX : now + limit, std::memory_order_seq_cst);
    // A post that came while wakes_at_ was old is seen here, or has kicked.
    const Left left = work_.left(now_ns());
    nap.none = armed_late || (callers_.load(std::memory_order_seq_cst) == 0 && left.ready && pause == UINT64_MAX);
    if (!nap.none) {
        uint64_t asleep = std::min(limit, left.sleep_limit_ns);
        if (callers_.load(std::memory_order_seq_cst) == 0 && left.unarmed) {
            asleep = std::min(asleep, kStreak); // a caller that was here when devices were armed has left
        }
        nap.rung = sleep_in_pieces(asleep);
        nap.theirs =
            !nap.rung && (asleep == streak || asleep == linger || asleep == pause) && recent_left(now_ns()) != 0;
        sleeps_.fetch_add(1, std::memory_order_relaxed);
    }
    wakes_at_.store(0, std::memory_order_seq_cst);
    return nap;
}

Poller::Kick Poller::take_kick(bool rung) {
    if (!rung && !kicked_.load(std::memory_order_seq_cst)) {
        return Kick::none;
    }
    const bool rings = kick_fd_.drain();
    // After the read, so that this takes no later kick.
    const bool kicked = kicked_.exchange(false, std::memory_order_seq_cst);
    const bool for_work = work_kicked_.exchange(false, std::memory_order_seq_cst);
    // A kick sets its flag before it rings: if the flag was seen first, the ring comes by itself.
    return for_work ? Kick::work : kicked ? Kick::sleep_less : rings ? Kick::late : Kick::none;
}

// Takes the doorbell's ring and the words of devices, which would wake this thread again otherwise.
void Poller::take_rings(bool by_peer) {
    work_.woken();
    if (by_peer && listening_loops_.load(std::memory_order_seq_cst) != 0) {
        let_loop_go_first();
    }
    if (sleeping_callers_.load(std::memory_order_seq_cst) == 0) {
        presence_.drain();
        if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
            presence_.ring(); // that may have been the sleeper's message
        }
    }
}

bool Poller::park_if_caller_sleeps() {
    if (sleeping_callers_.load(std::memory_order_seq_cst) == 0) {
        return false;
    }
    const uint32_t ticket = parked_.prepare();
    if (sleeping_callers_.load(std::memory_order_seq_cst) != 0 && !stop_.load(std::memory_order_seq_cst)) {
        parked_.wait(ticket, kSecond);
    } else {
        parked_.cancel();
    }
    return true;
}

void Poller::run() {
    presence_.hold();
    started_.store(true);
    started_.notify_all();
    // Until this time, after a kick, sleeps are short: later operations need not kick again, and a tick cleans up after
    // cancelled ones before a long sleep. 0: sleeps may be long.
    uint64_t linger_until = 0;
    uint64_t linger = kLinger;
    while (!stop_.load(std::memory_order_seq_cst)) {
        if (park_if_caller_sleeps()) {
            continue;
        }
        if (callers_.load(std::memory_order_seq_cst) == 0 && !callers_are_quick(now_ns())) {
            presence_.set_sleeping(true);
        }
        const Nap slept = nap(linger_until);
        const Kick kick = take_kick(slept.rung);
        const uint64_t woken = now_ns();
        // If another descriptor rings beside a kick that is not for work, it ends the next sleep at once.
        const bool look = slept.none || kick == Kick::work || (kick == Kick::none && !slept.theirs);
        if (look && (slept.rung || slept.none)) {
            take_rings(slept.rung && kick == Kick::none);
        }
        const bool kicked = kick == Kick::work || kick == Kick::sleep_less;
        if (kicked) {
            linger = std::max(asked_ns_.exchange(0, std::memory_order_relaxed), kLinger);
        }
        const bool polled = look && callers_.load(std::memory_order_seq_cst) == 0 && try_polling();
        if (polled) {
            spin_as_progress();
            polling_.unlock();
            finished_.notify_all();
        } else if (look && callers_.load(std::memory_order_seq_cst) == 0) {
            nap_shortly(); // the poller takes only a glance, and may have been displaced from this processor
        }
        if (kicked || (!polled && linger_until != 0)) { // a caller polls, or did, and may have left work
            linger_until = woken + linger;
        } else if (linger_until <= woken) {
            linger_until = 0;
        }
        while (exclusive_.load(std::memory_order_seq_cst) != 0) {
            nap_shortly();
        }
    }
    presence_.release();
}

void Poller::spin_as_progress() {
    presence_.set_sleeping(false);
    progress_polls_.store(true, std::memory_order_relaxed);
    uint64_t spin_end = 0; // it does not spin before it has found something: a timer or a deadline may have woken it
    while (callers_.load(std::memory_order_relaxed) == 0 && exclusive_.load(std::memory_order_relaxed) == 0 &&
           !stop_.load(std::memory_order_relaxed)) {
        // A thread that posts one operation after the other, and waits for none, is only held up by looks for their
        // ends.
        const bool more = work_.poll() == Found::work;
        const uint64_t now = now_ns();
        tick_when_due(now);
        if (more) {
            turns_.found();
            spin_end = now + spin_ns_;
        } else if (now >= spin_end) {
            break;
        } else {
            turns_.pass(now, presence_.take_woke_peer());
        }
    }
    progress_polls_.store(false, std::memory_order_relaxed);
}

} // namespace zerohop
