// Who polls and who sleeps: one poller at a time, and no way of waking a sleeper that gets lost.
#include "engine/poller.hpp"
#include "engine_fixture.hpp"

#include <sys/eventfd.h>

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr uint64_t kLimit = 10 * kSecond; // past it a sleeper counts as never woken

// Counts what is published and what a poll has found of it.
class Work final : public Pollable {
public:
    bool poll() override {
        if (inside_.exchange(true)) {
            overlaps.fetch_add(1);
        }
        polls.fetch_add(1);
        if (readable_fd >= 0) {
            uint64_t count = 0;
            if (::read(readable_fd, &count, sizeof count) > 0) {
                published.fetch_add(1);
            }
        }
        const uint64_t now = published.load();
        const bool did = taken.exchange(now) != now;
        inside_.store(false);
        return did;
    }
    void tick(uint64_t /*now*/) override { ticks.fetch_add(1); }
    bool ready() override {
        asleep.store(std::this_thread::get_id()); // asked last thing before a sleep
        return published.load() != taken.load();
    }
    uint64_t sleep_limit_ns(uint64_t /*now*/) override { return limit.load(); }

    std::atomic<uint64_t> published{0};
    std::atomic<uint64_t> taken{0};
    std::atomic<uint64_t> limit{UINT64_MAX};
    std::atomic<uint64_t> polls{0};
    std::atomic<uint64_t> ticks{0};
    std::atomic<int> overlaps{0};
    std::atomic<std::thread::id> asleep{};
    int readable_fd = -1;

private:
    std::atomic<bool> inside_{false};
};

struct Polled {
    explicit Polled(uint64_t spin_ns = 0) : poller(work, presence, finished, spin_ns) {
        poller.start();
        peer = std::make_unique<PeerPresence>(presence.page_fd(), presence.doorbell_fd());
    }
    // Waits until so much has been polled; false if that was never noticed.
    bool wait_for(uint64_t count, uint64_t spin_ns = 0) {
        return wait([this, count] { return work.taken.load() >= count; }, spin_ns);
    }
    bool wait(const std::function<bool()>& condition, uint64_t spin_ns = 0) {
        const uint64_t limit = now_ns() + kLimit;
        return poller.wait([&] { return condition() && now_ns() < limit; }, limit, spin_ns, true);
    }
    // As a peer does it: publish, then ring if the flag says so.
    void publish_as_peer() {
        work.published.fetch_add(1);
        peer->wake();
    }
    void end_operation(std::atomic<bool>& ended) {
        ended.store(true);
        finished.notify_all();
        poller.wake_sleeping_caller();
    }

    EventCount finished;
    Presence presence;
    Work work;
    Poller poller;
    std::unique_ptr<PeerPresence> peer;
};

// A thread in wait_for(1), known to sleep with the right to poll.
struct Sleeper {
    explicit Sleeper(Polled& polled) : thread([&] { woken.store(polled.wait_for(1)); }) {
        REQUIRE(eventually([&] { return polled.work.asleep.load() == thread.get_id(); }));
    }
    bool join() {
        thread.join();
        return woken.load();
    }
    std::atomic<bool> woken{false};
    std::thread thread;
};

} // namespace

TEST_CASE("poller: a peer's work is noticed, whoever sleeps") {
    for (const uint64_t spin_ns : {uint64_t{0}, 20 * kMicrosecond}) {
        Polled polled(spin_ns);
        for (uint64_t i = 1; i <= 2000; ++i) {
            polled.publish_as_peer();
            if (i % 2 == 0) {
                REQUIRE(polled.wait_for(i, spin_ns));
            } else {
                REQUIRE(eventually([&] { return polled.work.taken.load() >= i; })); // by the progress thread
            }
        }
        CHECK(polled.work.overlaps.load() == 0);
    }
}

TEST_CASE("poller: a peer's work wakes a sleeping caller") {
    Polled polled;
    Sleeper sleeper(polled);
    polled.publish_as_peer();
    CHECK(sleeper.join());
}

TEST_CASE("poller: a second caller takes no doorbell away from the first, which sleeps") {
    Polled polled;
    Sleeper sleeper(polled);
    std::atomic<int> asked{0};
    std::atomic<bool> ended{false};
    std::thread second([&] {
        CHECK(polled.wait([&] {
            asked.fetch_add(1);
            return ended.load();
        }));
    });
    REQUIRE(eventually([&] { return asked.load() >= 2; })); // it stands in line
    polled.publish_as_peer();
    CHECK(sleeper.join());
    polled.end_operation(ended);
    second.join();
}

TEST_CASE("poller: a second caller that comes and goes leaves the first one's doorbell alone") {
    Polled polled;
    Sleeper sleeper(polled);
    std::thread second([&] { CHECK_FALSE(polled.poller.wait([] { return false; }, 0, 1000, false)); });
    second.join();
    polled.publish_as_peer();
    CHECK(sleeper.join());
}

TEST_CASE("poller: an operation that another thread ends wakes the caller that sleeps") {
    Polled polled;
    std::atomic<bool> ended{false};
    std::thread caller([&] { CHECK(polled.wait([&] { return ended.load(); })); });
    REQUIRE(eventually([&] { return polled.work.asleep.load() == caller.get_id(); }));
    polled.end_operation(ended);
    caller.join();
}

TEST_CASE("poller: an operation that ends between the last look and the sleep is noticed") {
    Polled polled;
    std::atomic<bool> ended{false};
    int looks = 0;
    CHECK(polled.wait([&] {
        const bool done = ended.load();
        if (++looks == 3) { // another thread, just after this look
            std::thread([&] { polled.end_operation(ended); }).join();
        }
        return done;
    }));
    CHECK(looks >= 4);
}

TEST_CASE("poller: operations ended by other threads at any moment") {
    for (const uint64_t spin_ns : {uint64_t{0}, 5 * kMicrosecond}) {
        Polled polled(spin_ns);
        constexpr int kRounds = 3000;
        std::vector<std::atomic<bool>> ended(kRounds);
        std::atomic<int> at{0};
        std::thread ender([&] {
            for (int i = 0; i < kRounds; ++i) {
                while (at.load() < i) {
                    cpu_pause();
                }
                for (int spins = i % 200; spins != 0; --spins) { // every phase of the caller's way to sleep
                    cpu_pause();
                }
                polled.end_operation(ended[static_cast<size_t>(i)]);
            }
        });
        bool woken = true;
        for (int i = 0; i < kRounds; ++i) {
            at.store(i);
            woken = woken && polled.wait([&] { return ended[static_cast<size_t>(i)].load(); }, spin_ns);
        }
        CHECK(woken);
        ender.join();
    }
}

TEST_CASE("poller: local work wakes a sleeping caller") {
    Polled polled;
    Sleeper sleeper(polled);
    polled.work.published.fetch_add(1);
    polled.poller.kick();
    CHECK(sleeper.join());
}

TEST_CASE("poller: a deadline that comes up cuts the sleep of a caller short") {
    Polled polled;
    Sleeper sleeper(polled);
    polled.work.limit.store(kMillisecond);
    const uint64_t before = polled.work.ticks.load();
    polled.poller.limit_sleep(now_ns(), kMillisecond);
    CHECK(eventually([&] { return polled.work.ticks.load() > before; }));
    polled.publish_as_peer();
    CHECK(sleeper.join());
}

TEST_CASE("poller: a deadline that comes up cuts the sleep of the progress thread short") {
    Polled polled;
    REQUIRE(eventually([&] { return polled.poller.sleeps() != 0 || polled.work.asleep.load() != std::thread::id(); }));
    for (int i = 0; i < 20; ++i) {
        polled.work.limit.store(kMillisecond);
        const uint64_t before = polled.work.ticks.load();
        polled.poller.limit_sleep(now_ns(), kMillisecond);
        REQUIRE(eventually([&] { return polled.work.ticks.load() > before; }));
        polled.work.limit.store(UINT64_MAX);
    }
}

TEST_CASE("poller: no kick is lost, however close they come") {
    Polled polled;
    uint64_t count = 0;
    for (int i = 0; i < 20'000; ++i) {
        for (int burst = i % 4; burst >= 0; --burst) {
            polled.work.published.fetch_add(1);
            ++count;
            polled.poller.kick();
            for (int spins = (i * 7 + burst * 31) % 400; spins != 0; --spins) {
                cpu_pause();
            }
        }
        REQUIRE(eventually([&] { return polled.work.taken.load() >= count; }));
    }
}

TEST_CASE("poller: one poller at a time, with many callers") {
    Polled polled(5 * kMicrosecond);
    constexpr int kThreads = 6;
    constexpr int kEach = 300;
    std::atomic<int> missed{0};
    std::vector<std::thread> callers;
    std::atomic<uint64_t> turn{0};
    for (int t = 0; t < kThreads; ++t) {
        callers.emplace_back([&, t] {
            for (int i = 0; i < kEach; ++i) {
                const uint64_t mine = turn.fetch_add(1) + 1;
                if (t % 2 == 0) {
                    polled.publish_as_peer();
                } else {
                    polled.work.published.fetch_add(1);
                    polled.poller.kick();
                }
                missed += polled.wait_for(std::min<uint64_t>(mine, polled.work.published.load()), 1000) ? 0 : 1;
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
    CHECK(missed.load() == 0);
    CHECK(polled.work.overlaps.load() == 0);
}

TEST_CASE("poller: exclusive means that nobody polls") {
    Polled polled(20 * kMicrosecond);
    std::atomic<bool> stop{false};
    std::atomic<bool> ended{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] { CHECK(polled.wait([&] { return ended.load(); }, 1000)); });
    }
    threads.emplace_back([&] {
        while (!stop.load()) {
            polled.publish_as_peer();
            std::this_thread::yield();
        }
    });
    std::atomic<int> inside{0};
    std::vector<std::thread> exclusive;
    for (int t = 0; t < 2; ++t) {
        exclusive.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                polled.poller.exclusive([&] {
                    CHECK(inside.fetch_add(1) == 0);
                    const uint64_t before = polled.work.polls.load();
                    std::this_thread::yield();
                    CHECK(polled.work.polls.load() == before);
                    inside.fetch_sub(1);
                });
            }
        });
    }
    for (std::thread& thread : exclusive) {
        thread.join();
    }
    stop.store(true);
    polled.end_operation(ended);
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(polled.work.overlaps.load() == 0);
}

TEST_CASE("poller: exclusive does not wait for a caller that sleeps") {
    Polled polled;
    Sleeper sleeper(polled);
    bool ran = false;
    polled.poller.exclusive([&] { ran = true; });
    CHECK(ran);
    polled.publish_as_peer();
    CHECK(sleeper.join());
}

TEST_CASE("poller: a descriptor wakes whoever sleeps") {
    Polled polled;
    const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    polled.poller.exclusive([&] { polled.work.readable_fd = fd; });
    polled.poller.watch(fd);
    const uint64_t one = 1;
    for (uint64_t i = 1; i <= 500; ++i) {
        if (i % 3 == 0) { // the progress thread alone
            REQUIRE(::write(fd, &one, sizeof one) == sizeof one);
            REQUIRE(eventually([&] { return polled.work.taken.load() >= i; }));
        } else {
            std::thread writer([&] { REQUIRE(::write(fd, &one, sizeof one) == sizeof one); });
            REQUIRE(polled.wait_for(i));
            writer.join();
        }
    }
    polled.poller.unwatch(fd);
    CHECK(polled.poller.descriptors() == 0);
    polled.poller.exclusive([&] { polled.work.readable_fd = -1; });
    ::close(fd);
}

TEST_CASE("poller: spinning only, nobody sleeps") {
    Polled polled;
    CHECK_FALSE(polled.poller.wait([] { return false; }, 0, 100 * kMicrosecond, false));
    polled.work.published.fetch_add(1);
    CHECK(polled.poller.wait([&] { return polled.work.taken.load() == 1; }, 0, kLimit, false));
}

TEST_CASE("poller: stopped twice, with a caller asleep") {
    Polled polled;
    Sleeper sleeper(polled);
    polled.poller.stop();
    polled.poller.stop();
    polled.publish_as_peer(); // the caller goes on by itself
    CHECK(sleeper.join());
    CHECK(polled.peer->life() == PeerPresence::Life::closed);
}
