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
    Found poll() override {
        if (on_poll) {
            on_poll();
        }
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
        const uint64_t most = one_at_a_time ? taken.load() + 1 : UINT64_MAX;
        const uint64_t now = std::min(published.load(), most);
        const bool did = taken.exchange(now) != now;
        resting.store(published.load() == now);
        inside_.store(false);
        return did ? finds : Found::nothing;
    }
    void tick(uint64_t /*now*/) override { ticks.fetch_add(1); }
    Left left(uint64_t /*now*/) override {
        asleep.store(std::this_thread::get_id()); // asked last thing before a sleep
        return {.ready = published.load() != taken.load(), .unarmed = false, .sleep_limit_ns = limit.load()};
    }
    uint64_t may_wait_ns() override { return tells_rest && resting.load() ? kStreak : 0; }

    std::atomic<uint64_t> published{0};
    std::atomic<uint64_t> taken{0};
    std::atomic<uint64_t> limit{UINT64_MAX};
    std::atomic<uint64_t> polls{0};
    std::atomic<uint64_t> ticks{0};
    std::atomic<int> overlaps{0};
    std::atomic<std::thread::id> asleep{};
    std::atomic<bool> resting{false};
    std::function<void()> on_poll;
    Found finds = Found::work;
    int readable_fd = -1;
    bool one_at_a_time = false; // each poll takes one
    bool tells_rest = false;    // nobody else publishes than who waits

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

TEST_CASE("poller: a progress thread that is told to sleep for less does only that") {
    Polled polled;
    const uint64_t slept = polled.poller.sleeps();
    for (const uint64_t limit_ns : {2 * kSecond, kSecond, kSecond / 2}) {
        CAPTURE(limit_ns);
        const uint64_t before = polled.poller.sleeps();
        CHECK(eventually([&] {
            polled.poller.limit_sleep(now_ns(), limit_ns);
            return polled.poller.sleeps() > before;
        }));
    }
    CHECK(polled.poller.sleeps() >= slept + 3); // what follows each but the last is over
    CHECK(polled.work.polls.load() == 0);
}

TEST_CASE("poller: a progress thread that finds ends that nobody waits for sleeps again at once") {
    Polled polled(100 * kSecond); // as long as it would spin for more
    polled.work.finds = Found::ends;
    for (uint64_t i = 1; i <= 3; ++i) {
        polled.work.asleep.store({});
        polled.publish_as_peer();
        REQUIRE(eventually([&] { return polled.work.taken.load() >= i; }));
        REQUIRE(eventually([&] { return polled.work.asleep.load() != std::thread::id(); }));
    }
    polled.work.finds = Found::work;
    polled.publish_as_peer();
    REQUIRE(eventually([&] { return polled.work.taken.load() >= 4; }));
    const uint64_t sleeps = polled.poller.sleeps();
    for (const uint64_t polls = polled.work.polls.load(); polled.work.polls.load() < polls + 100;) {
        std::this_thread::yield();
    }
    CHECK(polled.poller.sleeps() == sleeps);
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

TEST_CASE("poller: after kicks that came at any moment the progress thread sleeps again") {
    Polled polled;
    std::vector<std::thread> kickers;
    for (int i = 0; i < 2; ++i) {
        kickers.emplace_back([&] {
            for (int k = 0; k < 20'000; ++k) {
                polled.poller.kick();
                polled.peer->wake();
            }
        });
    }
    for (std::thread& kicker : kickers) {
        kicker.join();
    }
    CHECK(eventually([&] {
        const uint64_t slept = polled.poller.sleeps();
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // far more than one turn takes
        return polled.poller.sleeps() == slept;
    }));
}

TEST_CASE("poller: devices are watched when the last socket goes while a caller polls") {
    const Descriptor device(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const Descriptor socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Polled polled;
    polled.poller.watch_device(device.get());
    polled.poller.watch(socket.get());
    bool closed = false;
    const std::thread::id caller = std::this_thread::get_id();
    polled.poller.exclusive([&] {
        polled.work.on_poll = [&] {
            if (!closed && std::this_thread::get_id() == caller) {
                closed = true;
                polled.poller.unwatch(socket.get());
                polled.work.published.fetch_add(1);
            }
        };
    });
    REQUIRE(polled.wait_for(1, kSecond));
    polled.poller.exclusive([&] {
        polled.work.on_poll = nullptr;
        polled.work.readable_fd = device.get();
    });
    const uint64_t one = 1;
    REQUIRE(write(device.get(), &one, sizeof one) == sizeof one);
    CHECK(eventually([&] { return polled.work.taken.load() == 2; }));
    polled.poller.unwatch_device(device.get());
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

TEST_CASE("poller: others poll again after exclusive, also when what it did failed") {
    Polled polled;
    CHECK_THROWS_AS(polled.poller.exclusive([] { throw std::runtime_error("no"); }), std::runtime_error);
    polled.publish_as_peer();
    CHECK(polled.wait_for(1));
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

TEST_CASE("poller: what a caller leaves undone is done by the progress thread") {
    for (const bool tells_rest : {false, true}) {
        CAPTURE(tells_rest);
        Polled polled;
        polled.work.one_at_a_time = true;
        polled.work.tells_rest = tells_rest;
        for (int round = 0; round < 5; ++round) {
            CAPTURE(round);
            // It comes so often, and for so long, that the progress thread has gone to sleep for good.
            for (const uint64_t until = now_ns() + 30 * kMillisecond; now_ns() < until;) {
                const uint64_t before = polled.work.taken.load();
                polled.work.published.fetch_add(1); // nobody rings
                REQUIRE(polled.wait_for(before + 1));
            }
            const uint64_t before = polled.work.taken.load();
            polled.work.published.fetch_add(3);
            REQUIRE(polled.wait_for(before + 1));
            REQUIRE(eventually([&] { return polled.work.taken.load() == before + 3; }));
        }
    }
}

TEST_CASE("poller: a progress thread that sleeps for good is told what a caller leaves, also where nothing is left") {
    Polled polled;
    polled.work.tells_rest = true;
    for (int round = 0; round < 5; ++round) {
        CAPTURE(round);
        polled.work.limit.store(UINT64_MAX);
        for (const uint64_t until = now_ns() + 30 * kMillisecond; now_ns() < until;) {
            const uint64_t before = polled.work.taken.load();
            polled.work.published.fetch_add(1);
            REQUIRE(polled.wait_for(before + 1));
        }
        const uint64_t before = polled.work.taken.load();
        polled.work.published.fetch_add(1);
        polled.work.limit.store(kMillisecond); // something that is pending
        REQUIRE(polled.wait_for(before + 1));
        const uint64_t polls = polled.work.polls.load();
        REQUIRE(eventually([&] { return polled.work.polls.load() >= polls + 3; }));
    }
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
