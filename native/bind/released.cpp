#include "bind/released.hpp"

#include "accel/idle_calls.hpp"
#include "base/clock.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <unistd.h>

namespace zerohop::bind {

namespace {

constexpr auto kPollInterval = std::chrono::microseconds(200);

std::atomic<int> threads_inside{0};
std::atomic<std::thread::id> ends_interpreter{std::thread::id()}; // no thread's id: the interpreter does not end yet

} // namespace

Released::Released() : state_(PyEval_SaveThread()) {
    threads_inside.fetch_add(1, std::memory_order_relaxed);
}

Released::~Released() {
    const std::thread::id ending = ends_interpreter.load(std::memory_order_acquire);
    while (ending != std::thread::id() && ending != std::this_thread::get_id()) {
        pause();
    }
    PyEval_RestoreThread(state_);
    threads_inside.fetch_sub(1, std::memory_order_relaxed);
}

void Released::interpreter_exits(uint64_t limit_ns) {
    PyThreadState* const state = PyEval_SaveThread();
    accel::IdleCalls& calls = accel::IdleCalls::of_process();
    (void)calls.done(calls.last(), limit_ns);
    calls.end();
    for (const uint64_t limit = now_ns() + limit_ns;
         threads_inside.load(std::memory_order_relaxed) != 0 && now_ns() < limit;) {
        std::this_thread::sleep_for(kPollInterval);
    }
    ends_interpreter.store(std::this_thread::get_id(), std::memory_order_release);
    PyEval_RestoreThread(state);
}

void Released::interpreter_forked() {
    threads_inside.store(0, std::memory_order_relaxed);
}

} // namespace zerohop::bind
