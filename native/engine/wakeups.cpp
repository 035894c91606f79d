// How threads that sleep are woken: kicks, doorbells, and descriptors that they watch.
#include "engine/epoll.hpp"
#include "engine/poller.hpp"

#include <algorithm>
#include <poll.h>

namespace zerohop {

Poller::Poller(Pollable& work, Presence& presence, EventCount& finished, uint64_t spin_ns)
    : work_(work), presence_(presence), finished_(finished), spin_ns_(spin_ns), kick_fd_(Descriptor::event()),
      descriptors_epoll_(make_epoll()), progress_epoll_(make_epoll()), caller_epoll_(make_epoll()) {
    add_to(progress_epoll_, kick_fd_.get(), EPOLLIN);
    add_to(progress_epoll_, presence_.bell_fd(), EPOLLIN);
    add_to(progress_epoll_, descriptors_epoll_.get(), EPOLLIN);
    add_to(caller_epoll_, presence_.bell_fd(), EPOLLIN);
    add_to(caller_epoll_, descriptors_epoll_.get(), EPOLLIN);
}

void Poller::watch_device(int fd) {
    add_to(descriptors_epoll_, fd, EPOLLIN);
    devices_.fetch_add(1);
    kick();
}

void Poller::unwatch_device(int fd) {
    control(descriptors_epoll_, EPOLL_CTL_DEL, fd, 0);
    devices_.fetch_sub(1);
}

// Sees to it that a readable socket does not wake the progress thread for each message while a caller polls.
void Poller::watch_descriptors_if_no_caller() {
    if (descriptors() == 0 && descriptors_watched_.load(std::memory_order_seq_cst)) {
        return;
    }
    const std::lock_guard lock(descriptors_lock_);
    const bool wanted = callers_.load(std::memory_order_seq_cst) == 0 || descriptors() == 0;
    if (wanted != descriptors_watched_.load(std::memory_order_relaxed)) {
        control(progress_epoll_, EPOLL_CTL_MOD, descriptors_epoll_.get(), wanted ? uint32_t{EPOLLIN} : 0U);
        descriptors_watched_.store(wanted, std::memory_order_seq_cst);
    }
}

void Poller::watch(int fd) {
    add_to(descriptors_epoll_, fd, kSocketReadable);
    descriptors_.fetch_add(1);
    watch_descriptors_if_no_caller();
}

void Poller::watch_writable(int fd, bool writable) {
    watch_room(descriptors_epoll_, fd, writable);
}

void Poller::unwatch(int fd) {
    control(descriptors_epoll_, EPOLL_CTL_DEL, fd, 0);
    descriptors_.fetch_sub(1);
    watch_descriptors_if_no_caller(); // without sockets there are still devices to watch
}

bool Poller::any_descriptor_ready() const {
    if (descriptors() == 0) {
        return false;
    }
    pollfd entry{descriptors_epoll_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

void Poller::kick_for(Kick what) {
    if (sleeping_callers_.load(std::memory_order_seq_cst) != 0) {
        presence_.ring(); // the progress thread is parked: the caller that sleeps will poll
    } else {
        kick_progress(what);
    }
}

void Poller::kick_progress(Kick what) {
    if (what == Kick::work) {
        work_kicked_.store(true, std::memory_order_seq_cst);
    }
    if (!kicked_.exchange(true, std::memory_order_seq_cst)) {
        kick_fd_.ring();
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
        asked_ns_.store(limit_ns, std::memory_order_relaxed);
        kick_for(Kick::sleep_less);
    }
}

} // namespace zerohop
