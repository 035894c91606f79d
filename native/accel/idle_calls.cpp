#include "accel/idle_calls.hpp"

#include "base/clock.hpp"
#include "base/signals_blocked.hpp"
#include "base/thread_start.hpp"

#include <atomic>
#include <chrono>
#include <new>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace zerohop::accel {

namespace {

constexpr auto kRetryInterval = std::chrono::milliseconds(50);
constexpr auto kLinger = std::chrono::milliseconds(5); // the thread lingers, because there often is more to do

} // namespace

IdleCalls::IdleCalls() : process_(::getpid()) {}

IdleCalls& IdleCalls::of_process() {
    static std::atomic<IdleCalls*> current{new IdleCalls}; // never destroyed, because destructors use it at exit
    IdleCalls* calls = current.load(std::memory_order_acquire);
    if (calls->process_ != ::getpid()) {
        // This is the parent's, whose lock a thread may hold that does not exist in this child.
        auto* const own = new IdleCalls;
        calls = current.compare_exchange_strong(calls, own, std::memory_order_acq_rel) ? own : calls;
    }
    return *calls;
}

uint64_t IdleCalls::later(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
        // leaked on purpose: what the call holds goes with the process
        static_cast<void>(new std::function<void()>(std::move(call)));
        return 0;
    }
    calls_.push_back(std::move(call));
    start();
    return ++last_number_;
}

void IdleCalls::start() {
    if (holds_ != 0 || calls_.empty()) {
        return;
    }
    if (working_) {
        call_queued_.notify_one();
        return;
    }
    const SignalsBlocked blocked; // the new thread inherits the mask
    working_ = true;
    try {
        std::thread thread([this] {
            prepare_for_exceptions();
            work();
        });
        pthread_setname_np(thread.native_handle(), "zerohop-idle");
        thread.detach();
    } catch (const std::system_error&) {
        working_ = false; // too many threads exist: the next later() or wait() tries again
    } catch (const std::bad_alloc&) {
        working_ = false; // the same
    }
}

uint64_t IdleCalls::last() const {
    const std::lock_guard lock(mutex_);
    return last_number_;
}

bool IdleCalls::is_done(uint64_t number) const {
    return done_number_ >= number || number > last_number_; // a larger number was a parent's: nothing is left to do
}

bool IdleCalls::done(uint64_t number, uint64_t patience_ns) {
    std::unique_lock lock(mutex_);
    const bool stuck = holds_ != 0 || (begun_ns_ != 0 && now_ns() - begun_ns_ > patience_ns);
    if (is_done(number) || patience_ns == 0 || stuck) {
        return is_done(number);
    }
    return call_done_.wait_for(lock, std::chrono::nanoseconds(patience_ns), [&] { return is_done(number); });
}

void IdleCalls::wait(uint64_t number) {
    std::unique_lock lock(mutex_);
    while (!call_done_.wait_for(lock, kRetryInterval, [&] { return is_done(number); })) {
        start(); // a thread may not have been available before
    }
}

void IdleCalls::end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
}

void IdleCalls::work() {
    std::unique_lock lock(mutex_);
    while (call_queued_.wait_for(lock, kLinger, [&] { return holds_ == 0 && !calls_.empty(); })) {
        std::function<void()> call = std::move(calls_.front());
        calls_.pop_front();
        begun_ns_ = now_ns();
        lock.unlock();
        for (bool done = false; !done;) {
            try {
                call();
                done = true;
            } catch (const std::bad_alloc&) { // what it was to give back would be kept for ever
                std::this_thread::sleep_for(kRetryInterval);
            }
        }
        call = nullptr; // destroys what the call holds before it counts as done
        lock.lock();
        begun_ns_ = 0;
        ++done_number_;
        call_done_.notify_all();
    }
    working_ = false;
}

IdleCalls::Hold::Hold(AtOnce /*at_once*/) : calls_(of_process()) {
    const std::lock_guard lock(calls_.mutex_);
    ++calls_.holds_; // from now on no call begins
}

bool IdleCalls::Hold::settled(uint64_t deadline_ns) {
    std::unique_lock lock(calls_.mutex_);
    const uint64_t now = now_ns();
    const std::chrono::nanoseconds left(deadline_ns > now ? deadline_ns - now : 0);
    return calls_.call_done_.wait_for(lock, left, [&] { return calls_.begun_ns_ == 0; });
}

IdleCalls::Hold::Hold() : Hold(AtOnce{}) {
    std::unique_lock lock(calls_.mutex_);
    calls_.call_done_.wait(lock, [&] { return calls_.begun_ns_ == 0; });
}

void IdleCalls::Hold::end() {
    if (calls_.process_ != ::getpid()) {
        return;
    }
    ended_.run([&] {
        const std::lock_guard lock(calls_.mutex_);
        --calls_.holds_;
        calls_.start();
    });
}

} // namespace zerohop::accel
