// Tests who polls and who sleeps: one poller at a time, and no lost wake-up.
#include "poller_fixture.hpp"

namespace test_poller {

using namespace zerohop;
using namespace zerohop::test;

TEST_CASE("poller: a peer's work is noticed, whoever sleeps") {
    for (const uint64_t spin_ns : {uint64_t{0}, 20 * kMicrosecond}) {
        Polled polled(spin_ns);
        for (uint64_t i = 1; i <= 2000; ++i) {
            polled.publish_as_peer();
            if (i % 2 == 0) {
                REQUIRE(polled.wait_for(i, spin_ns));
            } else {
                REQUIRE(eventually([&] { return polled.work.taken.load() >= i; })); // the progress thread polls
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
    REQUIRE(eventually([&] { return asked.load() >= 2; })); // it waits for its turn
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
        if (++looks == 3) { // another thread ends the operation just after this look
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
                for (int spins = i % 200; spins != 0; --spins) { // hits every phase of the caller's way to sleep
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
    REQUIRE(polled.wait_for(1, longest_wait()));
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
        if (i % 3 == 0) { // only the progress thread polls
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
    CHECK(polled.poller.wait([&] { return polled.work.taken.load() == 1; }, 0, longest_wait(), false));
}

TEST_CASE("poller: stopped twice, with a caller asleep") {
    Polled polled;
    Sleeper sleeper(polled);
    polled.poller.stop();
    polled.poller.stop();
    polled.publish_as_peer(); // the caller goes on polling by itself
    CHECK(sleeper.join());
    CHECK(polled.peer->life() == PeerPresence::Life::closed);
}

} // namespace test_poller
