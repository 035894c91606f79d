// Tests the thread that polls while nobody else does: what wakes it, and when it sleeps again.
#include "poller_fixture.hpp"

namespace test_progress_thread {

using namespace zerohop;
using namespace zerohop::test;

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
    constexpr uint64_t kHour = 3600 * kSecond; // so that none of these sleeps ends during the test
    for (const uint64_t limit_ns : {4 * kHour, 2 * kHour, kHour}) {
        CAPTURE(limit_ns);
        const uint64_t before = polled.poller.sleeps();
        CHECK(eventually([&] {
            polled.poller.limit_sleep(now_ns(), limit_ns);
            return polled.poller.sleeps() > before;
        }));
    }
    CHECK(polled.poller.sleeps() >= slept + 3); // each sleep but the last has ended
    CHECK(polled.work.polls.load() == 0);
}

TEST_CASE("poller: a progress thread that finds ends that nobody waits for sleeps again at once") {
    Polled polled(100 * kSecond); // the time that it would spin after work
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

TEST_CASE("poller: what a caller leaves undone is done by the progress thread") {
    for (const bool tells_rest : {false, true}) {
        CAPTURE(tells_rest);
        Polled polled;
        polled.work.one_at_a_time = true;
        polled.work.tells_rest = tells_rest;
        for (int round = 0; round < 5; ++round) {
            CAPTURE(round);
            // A caller polls so often, and for so long, that the progress thread has gone to sleep for good.
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
        polled.work.limit.store(kMillisecond); // as if something were pending
        REQUIRE(polled.wait_for(before + 1));
        const uint64_t polls = polled.work.polls.load();
        REQUIRE(eventually([&] { return polled.work.polls.load() >= polls + 3; }));
    }
}

TEST_CASE("poller: callers that take turns with a peer are not rung for") {
    Polled polled;
    constexpr uint64_t kRounds = 20'000;
    uint64_t unrung = 0;
    for (uint64_t i = 1; i <= kRounds; ++i) {
        polled.publish_as_peer();
        REQUIRE(polled.wait_for(i, kMillisecond));
        unrung += polled.peer->sleeping() ? 0 : 1;
    }
    CHECK(unrung > kRounds / 100); // without quick callers: none; with them: all but where a thread was displaced
    // Soon after the last one the progress thread is asleep for good, and is rung for.
    CHECK(eventually([&] { return polled.peer->sleeping(); }));
    CHECK(eventually([&] { return polled.poller.wakes_at() == UINT64_MAX; }));
}

TEST_CASE("poller: what comes after callers that took turns is done by the progress thread") {
    Polled polled;
    uint64_t count = 0;
    for (int round = 0; round < 300; ++round) {
        for (int i = 0; i < 40; ++i) {
            polled.publish_as_peer();
            REQUIRE(polled.wait_for(++count, kMillisecond));
        }
        for (const auto until = now_ns() + static_cast<uint64_t>(round) * 3 * kMicrosecond; now_ns() < until;) {
            cpu_pause(); // it comes at any moment of the progress thread's
        }
        polled.publish_as_peer();
        ++count;
        REQUIRE(eventually([&] { return polled.work.taken.load() >= count; }));
    }
}

} // namespace test_progress_thread
