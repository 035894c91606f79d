// Tests the lock of the data plane: how its waiters affect other threads.
#include "base/sync.hpp"
#include "engine_fixture.hpp"

#include <fstream>

namespace test_sync {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Returns how often a thread of this process has given its processor away to sleep.
uint64_t slept(pid_t thread) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    const std::string name = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name)) {
            return std::stoull(line.substr(name.size()));
        }
    }
    return 0;
}

} // namespace

TEST_CASE("a lock that one thread takes again and again, and keeps for long, comes to others, too") {
    constexpr int kRounds = 2000; // a thread that only came by chance would need as many or more
    LaneLock lock;
    std::atomic<bool> taken{false};
    std::atomic<bool> began{false};
    std::atomic<bool> over{false};
    std::atomic<pid_t> waiting{0};
    std::thread keeper([&] {
        uint64_t looked = 0;
        for (int round = 0; round < kRounds && !taken.load();) {
            const std::lock_guard held(lock);
            began.store(true);
            for (const uint64_t until = now_ns() + kMillisecond; now_ns() < until;) {
                cpu_pause();
            }
            // Counts only rounds in which the other thread has looked: a busy machine may not let it.
            const uint64_t looks = slept(waiting.load());
            round += looks > looked ? 1 : 0;
            looked = looks;
        }
        over.store(true);
    });
    REQUIRE(eventually([&] { return began.load(); }));
    bool in_time = false;
    std::thread other([&] {
        waiting.store(gettid());
        const std::lock_guard held(lock);
        in_time = !over.load();
        taken.store(true);
    });
    other.join();
    keeper.join();
    CHECK(in_time);
}

TEST_CASE_TEMPLATE("a lock that is held for long is slept for, so that its holder gets a processor", Lock, SpinLock,
                   OrderedSpinLock, LaneLock) {
    Lock lock;
    lock.lock();
    std::atomic<pid_t> waiting{0};
    std::thread waiter([&] {
        waiting.store(gettid());
        const std::lock_guard held(lock);
    });
    CHECK(eventually([&] { return waiting.load() != 0 && slept(waiting.load()) > 10; }));
    lock.unlock();
    waiter.join();
    CHECK(lock.try_lock());
    CHECK_FALSE(lock.try_lock());
}

} // namespace test_sync
