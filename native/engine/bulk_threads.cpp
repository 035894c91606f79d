#include "engine/bulk_threads.hpp"

#include "base/signals_blocked.hpp"
#include "base/thread_start.hpp"
#include "engine/epoll.hpp"
#include "engine/sleep.hpp"
#include "engine/tuning.hpp"
#include "provider/lane.hpp"

#include <algorithm>
#include <pthread.h>
#include <utility>

namespace zerohop {

OneBulkThread::OneBulkThread()
    : links_(std::make_shared<const Links>()), kick_fd_(Descriptor::event()), epoll_(make_epoll()) {
    add_to(epoll_, kick_fd_.get(), EPOLLIN);
    const SignalsBlocked blocked; // the new thread inherits the mask
    thread_ = std::thread([this] {
        prepare_for_exceptions();
        run();
    });
    pthread_setname_np(thread_.native_handle(), "zerohop-bulk");
}

std::shared_ptr<const OneBulkThread::Links> OneBulkThread::links() {
    const std::lock_guard lock(lock_);
    return links_;
}

template <class F> void OneBulkThread::change(F&& f) {
    const std::lock_guard only(changing_);
    auto changed = std::make_shared<Links>(*links_);
    f(*changed);
    std::shared_ptr<const Links> now = std::move(changed);
    {
        const std::lock_guard lock(lock_);
        links_.swap(now);
    }
    kick(); // the thread lets go of the list that it has
}

void OneBulkThread::add(std::shared_ptr<BulkLink> link) {
    change([&](Links& links) { links.push_back(std::move(link)); });
}

void OneBulkThread::remove(const BulkLink& link) {
    if (!abandoned_) { // the locks are as the parent's threads held them
        change([&](Links& links) { std::erase_if(links, [&](const auto& each) { return each.get() == &link; }); });
    }
}

void OneBulkThread::kick() {
    if (!kicked_.exchange(true, std::memory_order_seq_cst)) {
        kick_fd_.ring();
    }
}

void OneBulkThread::watch(int fd) {
    add_to(epoll_, fd, kSocketReadable);
}

void OneBulkThread::watch_writable(int fd, bool writable) {
    watch_room(epoll_, fd, writable);
}

void OneBulkThread::unwatch(int fd) {
    control(epoll_, EPOLL_CTL_DEL, fd, 0);
}

void OneBulkThread::run() {
    bool woken = false;
    while (!stop_.load(std::memory_order_seq_cst)) {
        bool moved = false;
        bool device = false;
        {
            const std::shared_ptr<const Links> all = links();
            for (const auto& link : *all) {
                moved |= link->move();
                device |= link->waits_for_device();
            }
        }
        if (moved) {
            woken = false;
            continue;
        }
        if (woken) { // a descriptor is ready, and its link waits for something else: room in a device's buffers
            nap_shortly();
        }
        // A program that closes descriptors that it does not own closes the doorbell: look now and then.
        const bool ready = sleep_on(epoll_.get(), device ? kDeviceInterval : kPieceOfSleep);
        const bool kicked = kicked_.load(std::memory_order_seq_cst);
        if (kicked) {
            [[maybe_unused]] const bool rung = kick_fd_.drain();
            kicked_.store(false, std::memory_order_seq_cst); // last: a kick from here on rings, and ends the next sleep
        }
        woken = ready && !kicked;
    }
}

void OneBulkThread::stop() {
    stop_.store(true, std::memory_order_seq_cst);
    if (thread_.joinable()) {
        kick();
        thread_.join();
    }
}

void OneBulkThread::abandon() {
    abandoned_ = true;
    if (thread_.joinable()) {
        // Leaked, not detached: the C library must not touch a thread that this process lacks.
        static_cast<void>(new std::thread(std::move(thread_)));
    }
    kick_fd_.reset();
    epoll_.reset();
}

BulkThread& BulkThreads::next() {
    const std::lock_guard lock(mutex_);
    const size_t most = std::max(1U, std::thread::hardware_concurrency());
    if (next_ % most >= threads_.size()) {
        threads_.push_back(std::make_unique<OneBulkThread>());
    }
    return *threads_[next_++ % most];
}

void BulkThreads::stop() {
    const std::lock_guard lock(mutex_);
    for (const auto& thread : threads_) {
        thread->stop();
    }
}

void BulkThreads::abandon() {
    for (const auto& thread : threads_) {
        thread->abandon();
    }
}

} // namespace zerohop
