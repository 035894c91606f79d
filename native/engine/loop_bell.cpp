#include "engine/loop_bell.hpp"

#include "base/status.hpp"
#include "engine/poller.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/epoll.h>

namespace zerohop {

LoopBell::LoopBell(Poller& poller, std::shared_ptr<CompletionQueue> queue)
    : poller_(poller), queue_(std::move(queue)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) {
        const int error = errno;
        throw NativeError(failed_to_make(error),
                          std::string("cannot make an epoll descriptor (epoll_create1): ") + std::strerror(error));
    }
    for (const int fd : {queue_->fd(), poller_.bell_fd(), poller_.sockets_fd()}) {
        epoll_event event{};
        event.events = fd == queue_->fd() ? uint32_t{EPOLLIN} : 0U;
        if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
            raise_watching(errno);
        }
    }
}

void LoopBell::listen() {
    if (!epoll_) {
        return; // closed: nobody would ever stop listening
    }
    if (!listening_.exchange(true, std::memory_order_acq_rel)) {
        poller_.loop_listens(true); // first: the progress thread may be woken by the same message
        watch_messages(true);
    }
    poller_.arm_devices();
}

std::vector<uint64_t> LoopBell::drain() {
    if (listening_.exchange(false, std::memory_order_acq_rel)) {
        watch_messages(false); // what comes in pieces is not for the loop to carry: the progress thread goes on
        if (queue_->empty()) {
            poller_.poll_once();
        }
        if (queue_->empty()) {
            poller_.arm_devices(); // the loop goes back to sleep, and the rest wakes the progress thread
        }
        poller_.loop_listens(false);
    }
    return queue_->drain();
}

void LoopBell::close() {
    if (listening_.exchange(false, std::memory_order_acq_rel)) {
        poller_.loop_listens(false);
    }
    epoll_.reset();
    queue_->close();
}

void LoopBell::watch_messages(bool wanted) {
    epoll_event event{};
    event.events = wanted ? uint32_t{EPOLLIN} : 0U;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, poller_.bell_fd(), &event);
    if (poller_.anything_watched()) {
        epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, poller_.sockets_fd(), &event);
    }
}

} // namespace zerohop
