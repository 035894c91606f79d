#include "engine/poller.hpp"

#include "engine/status.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace zerohop {

namespace {

constexpr uint64_t kTick = kMillisecond;
constexpr uint64_t kFirstYield = 20 * kMicrosecond; // much longer than an answer takes from a peer that spins, too
constexpr uint64_t kLinger = 5 * kMillisecond;      // no longer than the engine's look at its peers
constexpr uint64_t kSoon = kMillisecond;            // a caller that comes back sooner will do so again,
constexpr int kLate = 2;                            // also after one delay
constexpr uint64_t kStreak = 5 * kMillisecond;      // how long the next one is waited for, instead of arming devices
constexpr uint64_t kLoopFirst = 100 * kMicrosecond; // about what waking a thread on another processor takes

Descriptor checked(int fd, const char* what) {
    if (fd < 0) {
        throw NativeError(Status::no_memory, Reason::out_of_descriptors,
                          std::string("cannot make ") + what + ": " + std::strerror(errno));
    }
    return Descriptor(fd);
}

void control(int epoll, int operation, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll, operation, fd, &event);
}

timespec duration(uint64_t ns) {
    return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

// Whether a descriptor became readable, and not only the time was up. Rounds up to milliseconds only where the kernel
// knows no finer wait.
bool sleep_on(int epoll, uint64_t limit_ns) {
    epoll_event events[4];
    if (limit_ns == UINT64_MAX) {
        return epoll_wait(epoll, events, 4, -1) > 0;
    }
    const timespec limit = duration(limit_ns);
    int ready = epoll_pwait2(epoll, events, 4, &limit, nullptr);
    if (ready < 0 && errno == ENOSYS) {
        ready =
            epoll_wait(epoll, events, 4, static_cast<int>(std::min<uint64_t>(limit_ns / kMillisecond + 1, 1'000'000)));
    }
    return ready > 0;
}

} // namespace

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
    interval_ns_ = std::min(2 * interval_ns_, kTick); // who was in line, if anybody, had nothing for us
}

Poller::Poller(Pollable& work, Presence& presence, EventCount& finished, uint64_t spin_ns)
    : work_(work), presence_(presence), finished_(finished), spin_ns_(spin_ns),
      kick_fd_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "an event descriptor")),
      descriptors_epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor")),
      progress_epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor")),
      caller_epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor")) {
    control(progress_epoll_.get(), EPOLL_CTL_ADD, kick_fd_.get(), EPOLLIN);
    control(progress_epoll_.get(), EPOLL_CTL_ADD, presence_.doorbell_fd(), EPOLLIN);
    control(progress_epoll_.get(), EPOLL_CTL_ADD, descriptors_epoll_.get(), EPOLLIN);
    control(caller_epoll_.get(), EPOLL_CTL_ADD, presence_.doorbell_fd(), EPOLLIN);
    control(caller_epoll_.get(), EPOLL_CTL_ADD, descriptors_epoll_.get(), EPOLLIN);
}

Poller::~Poller() {
    stop();
}

void Poller::start() {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "zerohop-poll");
    started_.wait(false); // a peer that looks at the page must find it held
}

void Poller::stop() {
    stop_.store(true, std::memory_order_seq_cst);
    kick_progress();
    wake_sleeping_caller();
    parked_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Poller::abandon() {
    stop_.store(true);
    if (thread_.joinable()) {
        thread_.detach();
    }
    for (Descriptor* fd : {&kick_fd_, &descriptors_epoll_, &progress_epoll_, &caller_epoll_}) {
        fd->reset();
    }
}

void Poller::enter(uint64_t now) {
    if (callers_.fetch_add(1, std::memory_order_seq_cst) == 0) {
        const bool late = now >= last_left_ns_.load(std::memory_order_relaxed) + kSoon;
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

// Nobody polls any more.
void Poller::sleep_for_others(uint64_t now) {
    presence_.set_sleeping(true);
    const uint64_t limit = work_.unarmed() ? kStreak : UINT64_MAX;
    // Work that came before the flag was up rang no doorbell.
    if (work_.ready()) {
        kick();
    } else {
        limit_sleep(now, std::min(limit, work_.sleep_limit_ns(now)));
    }
}

// What came before a device was armed wakes nobody: so it is looked at; by whoever polls now, where somebody does, who
// arms before it sleeps, and learns that nobody has looked yet.
void Poller::arm_devices() {
    if (work_.unarmed() && work_.arm(false) && polling_.try_lock()) {
        work_.poll();
        tick_when_due(now_ns());
        polling_.unlock();
        finished_.notify_all();
        if (work_.unarmed()) {
            kick(); // there was more than one look takes
        }
    }
}

// While callers come and go all the time they see to the devices: how long the progress thread leaves that to them
// before it looks whether they still do. 0: they do not.
uint64_t Poller::streak_left(uint64_t now) const {
    const uint64_t until = last_left_ns_.load(std::memory_order_relaxed) + kStreak;
    const bool streak = late_.load(std::memory_order_relaxed) < kLate && now < until && work_.unarmed();
    return streak ? until - now : 0;
}

void Poller::watch_device(int fd) {
    control(descriptors_epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
    devices_.fetch_add(1);
    kick();
}

void Poller::unwatch_device(int fd) {
    control(descriptors_epoll_.get(), EPOLL_CTL_DEL, fd, 0);
    devices_.fetch_sub(1);
}

// While a caller polls, a readable socket must not wake the progress thread for each message.
void Poller::watch_descriptors_if_no_caller() {
    if (descriptors() == 0) {
        return;
    }
    const std::lock_guard lock(descriptors_lock_);
    const bool wanted = callers_.load(std::memory_order_seq_cst) == 0;
    if (wanted != descriptors_watched_) {
        control(progress_epoll_.get(), EPOLL_CTL_MOD, descriptors_epoll_.get(), wanted ? uint32_t{EPOLLIN} : 0U);
        descriptors_watched_ = wanted;
    }
}

void Poller::watch(int fd) {
    control(descriptors_epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP);
    descriptors_.fetch_add(1);
    watch_descriptors_if_no_caller();
}

void Poller::watch_writable(int fd, bool writable) {
    control(descriptors_epoll_.get(), EPOLL_CTL_MOD, fd,
            static_cast<uint32_t>(EPOLLIN | EPOLLRDHUP) | (writable ? EPOLLOUT : 0U));
}

void Poller::unwatch(int fd) {
    control(descriptors_epoll_.get(), EPOLL_CTL_DEL, fd, 0);
    descriptors_.fetch_sub(1);
}

bool Poller::any_descriptor_ready() const {
    if (descriptors() == 0) {
        return false;
    }
    pollfd entry{descriptors_epoll_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

void Poller::kick() {
    if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
        presence_.ring(); // the progress thread is parked: the caller that sleeps will poll
    } else {
        kick_progress();
    }
}

void Poller::kick_progress() {
    if (!kicked_.exchange(true, std::memory_order_seq_cst)) {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(kick_fd_.get(), &one, sizeof one);
    }
}

void Poller::wake_sleeping_caller() {
    if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
        presence_.ring();
    }
}

void Poller::limit_sleep(uint64_t now, uint64_t limit_ns) {
    const uint64_t wakes_at =
        std::max(wakes_at_.load(std::memory_order_seq_cst), caller_wakes_at_.load(std::memory_order_seq_cst));
    if (limit_ns != UINT64_MAX && wakes_at > now + limit_ns) {
        kick();
    }
}

void Poller::tick_when_due(uint64_t now) {
    if (now >= next_tick_) {
        next_tick_ = now + kTick;
        work_.tick(now);
    }
}

bool Poller::wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep) {
    if (done()) {
        return true;
    }
    uint64_t now = now_ns();
    const uint64_t spin_end = now + spin_ns;
    enter(now);
    for (;;) {
        if (polling_.try_lock()) {
            now = poll_and_hand_over(done, deadline_ns, spin_ns, may_sleep, now);
        } else if (!may_sleep) {
            cpu_pause();
        } else {
            const uint32_t ticket = finished_.prepare();
            if (done()) {
                finished_.cancel();
            } else if (polling_.try_lock()) { // the poller left before we stood in line
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
            sched_yield();
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
        const bool did = work_.poll();
        if (did) {
            turns_.found();
        }
        if (done()) {
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
            sleep_as_caller(done, deadline_ns);
            now = now_ns();
            tick_when_due(now);
            spin_end = now + spin_ns;
        }
    }
    return now;
}

void Poller::sleep_as_caller(const std::function<bool()>& done, uint64_t deadline_ns) {
    // The progress thread must not take the doorbell's message: it leaves its epoll and parks.
    sleeping_callers_.fetch_add(1, std::memory_order_seq_cst);
    kick_progress();
    presence_.set_sleeping(true);
    // Who ends an operation from here on rings; what was ended before is seen now.
    if (!done() && !work_.arm(true) && !work_.ready()) {
        const uint64_t now = now_ns();
        uint64_t limit = deadline_ns == 0 ? UINT64_MAX : deadline_ns - std::min(deadline_ns, now);
        limit = std::min(limit, work_.sleep_limit_ns(now));
        caller_wakes_at_.store(limit == UINT64_MAX ? UINT64_MAX : now + limit, std::memory_order_seq_cst);
        limit = std::min(limit, work_.sleep_limit_ns(now)); // as in run(): either this sees it, or it is kicked
        sleeps_.fetch_add(1, std::memory_order_relaxed);
        if (exclusive_.load(std::memory_order_seq_cst) == 0) {
            sleep_on(caller_epoll_.get(), limit);
        }
        caller_wakes_at_.store(0, std::memory_order_seq_cst);
    }
    presence_.set_sleeping(false);
    presence_.drain();
    sleeping_callers_.fetch_sub(1, std::memory_order_seq_cst);
    parked_.notify_all();
}

void Poller::exclusive(const std::function<void()>& f) {
    exclusive_.fetch_add(1, std::memory_order_seq_cst);
    kick();
    presence_.ring(); // a caller may be asleep with the right to poll
    {
        const std::lock_guard lock(polling_);
        f();
    }
    exclusive_.fetch_sub(1, std::memory_order_seq_cst);
    finished_.notify_all();
}

void Poller::poll_once() {
    callers_.fetch_add(1, std::memory_order_seq_cst); // but none that others expect to come back soon
    watch_descriptors_if_no_caller();
    if (polling_.try_lock()) {
        presence_.set_sleeping(false);
        presence_.drain(); // nobody sleeps on it: a caller that does holds the right to poll
        work_.poll();
        tick_when_due(now_ns());
        polling_.unlock();
        finished_.notify_all();
    }
    if (callers_.fetch_sub(1, std::memory_order_seq_cst) == 1) {
        watch_descriptors_if_no_caller();
        sleep_for_others(now_ns()); // work that is left kicks the progress thread
    }
}

// The message woke an event loop, too. It is there sooner when it polls itself, and would only be held up by us; but
// it may be busy with something else.
void Poller::let_loop_go_first() {
    pollfd entry{kick_fd_.get(), POLLIN, 0};
    const timespec limit = duration(kLoopFirst);
    ppoll(&entry, 1, &limit, nullptr);
}

void Poller::run() {
    presence_.hold();
    started_.store(true);
    started_.notify_all();
    // After a kick: operations come and go, do not make each of them kick again; and what was cancelled without a
    // trace elsewhere is cleaned up by a tick, which must come before a long sleep. 0: neither.
    uint64_t linger_until = 0;
    while (!stop_.load(std::memory_order_seq_cst)) {
        if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
            const uint32_t ticket = parked_.prepare();
            if (sleeping_callers_.load(std::memory_order_seq_cst) != 0 && !stop_.load(std::memory_order_seq_cst)) {
                parked_.wait(ticket, kSecond);
            } else {
                parked_.cancel();
            }
            continue;
        }
        if (callers_.load(std::memory_order_seq_cst) == 0) {
            presence_.set_sleeping(true);
        }
        const uint64_t now = now_ns();
        const uint64_t linger = linger_until == 0 ? UINT64_MAX : linger_until - std::min(linger_until, now);
        // A caller that polls for long arms when it sleeps itself, and tells when it leaves.
        const uint64_t streak = streak_left(now);
        const bool armed_late = streak == 0 && callers_.load(std::memory_order_seq_cst) == 0 && work_.arm(false);
        const uint64_t limit = std::min({work_.sleep_limit_ns(now), linger, streak != 0 ? streak : UINT64_MAX});
        wakes_at_.store(limit == UINT64_MAX ? UINT64_MAX : now + limit, std::memory_order_seq_cst);
        const bool stay_awake = armed_late || (callers_.load(std::memory_order_seq_cst) == 0 && work_.ready());
        bool rung = false;
        bool till_streak_ends = false;
        if (!stay_awake) {
            // What was posted while wakes_at_ was old has either kicked or is in this limit.
            uint64_t asleep = std::min(limit, work_.sleep_limit_ns(now_ns()));
            if (callers_.load(std::memory_order_seq_cst) == 0 && work_.unarmed()) {
                asleep = std::min(asleep, kStreak); // a caller that was here when devices were armed has left
            }
            till_streak_ends = asleep == streak;
            rung = sleep_on(progress_epoll_.get(), asleep);
            sleeps_.fetch_add(1, std::memory_order_relaxed);
        }
        wakes_at_.store(0, std::memory_order_seq_cst);
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(kick_fd_.get(), &count, sizeof count);
        // After the read, which may not take a later kick.
        const bool kicked = kicked_.exchange(false, std::memory_order_seq_cst);
        if (rung || stay_awake) {
            work_.woken();
        }
        if (rung && !kicked && listening_loops_.load(std::memory_order_seq_cst) != 0) {
            let_loop_go_first();
        }
        const uint64_t woken = now_ns();
        if (sleeping_callers_.load(std::memory_order_seq_cst) == 0) {
            presence_.drain();
            if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
                presence_.ring(); // that may have been the sleeper's message
            }
        }
        const bool theirs = till_streak_ends && !rung && !kicked && streak_left(woken) != 0;
        if (!theirs && callers_.load(std::memory_order_seq_cst) == 0 && polling_.try_lock()) {
            spin_as_progress();
            polling_.unlock();
            finished_.notify_all();
            if (kicked) {
                linger_until = woken + kLinger;
            } else if (linger_until <= woken) {
                linger_until = 0;
            }
        } else if (kicked || linger_until != 0) {
            linger_until = woken + kLinger; // a caller polls, or did just now, perhaps not for long enough
        }
        while (exclusive_.load(std::memory_order_seq_cst) != 0) {
            sched_yield();
        }
    }
    presence_.release();
}

void Poller::spin_as_progress() {
    presence_.set_sleeping(false);
    uint64_t spin_end = 0; // it woke for nothing (a timer, a new deadline) until it has found something
    while (callers_.load(std::memory_order_relaxed) == 0 && exclusive_.load(std::memory_order_relaxed) == 0 &&
           !stop_.load(std::memory_order_relaxed)) {
        const bool did = work_.poll();
        const uint64_t now = now_ns();
        tick_when_due(now);
        if (did) {
            turns_.found();
            spin_end = now + spin_ns_;
        } else if (now >= spin_end) {
            break;
        } else {
            turns_.pass(now, presence_.take_woke_peer());
        }
    }
}

} // namespace zerohop
