// Tests that a full lane is back-pressure: nothing is lost, and a caller that waits for room goes on. Many threads at
// once.
#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"

#include <numeric>
#include <random>

namespace test_framed_pressure {

using namespace zerohop;
using namespace zerohop::test;

namespace {

const Outcome kWindowFull{Status::would_block, Reason::window_full};
const Outcome kNoCredit{Status::would_block, Reason::no_credit};

} // namespace

TEST_CASE("pressure: a full window, nothing is lost") {
    for (const Path& path : every_path()) {
        if (path.mapped) {
            continue; // a mapped copy needs no window
        }
        for (const Kind kind : {Kind::write, Kind::read}) {
            CAPTURE(path.name);
            CAPTURE(static_cast<int>(kind));
            Pair pair(path.provider);
            constexpr uint64_t kPiece = 700;
            const size_t room = (framed::kWindow + 1) * kPiece;
            const Reach reach = pair.reach(room, path.local, path.remote);
            const Bytes bytes = pattern(room, 1);
            pair.a.put(*reach.local, kind == Kind::write ? bytes : Bytes(room, 0));
            pair.b.put(*reach.remote, kind == Kind::write ? Bytes(room, 0) : bytes);
            std::vector<Posted> ops;
            {
                const Stopped stopped(pair.b);
                for (uint64_t i = 0; i < framed::kWindow; ++i) {
                    ops.push_back(post(pair.a, reach.route, request(kind, i * kPiece, i * kPiece, kPiece), true));
                    REQUIRE(ops.back().what == Posted::What::posted);
                }
                const Posted full = post(pair.a, reach.route, request(kind, 0, 0, 1), true);
                CHECK(full.what == Posted::What::retry);
                CHECK(full.outcome == kWindowFull);
                CHECK(post(pair.a, request(Kind::notify, 0, 0, 0, 1), true).outcome == kWindowFull);
                CHECK(post(pair.a, reach.route, request(Kind::fetch_add, 0, 0, 8), true).outcome == kWindowFull);
                Request late = request(kind, 0, 0, 1);
                late.deadline_ns = now_ns() + kMillisecond;
                const Posted waited = post(pair.a, reach.route, late);
                CHECK(waited.what == Posted::What::failed);
                CHECK(waited.outcome == Outcome{Status::deadline, Reason::window_full});
            }
            const uint64_t last = framed::kWindow * kPiece;
            ops.push_back(post(pair.a, reach.route, request(kind, last, last, kPiece))); // waits for room
            for (Posted& op : ops) {
                REQUIRE(pair.a.wait(std::move(op)) == kOk);
            }
            CHECK(same_bytes(kind == Kind::write ? pair.b.get(*reach.remote) : pair.a.get(*reach.local), bytes));
        }
    }
}

TEST_CASE("pressure: a page list that takes more of the window than there is") {
    Pair pair("shm");
    const Reach reach = pair.reach(1 << 16);
    const Stopped stopped(pair.b);
    // 600 requests of 8192 pages each: two of them do not fit.
    const std::vector<uint64_t> pages(600 * framed::kMaxTable, 0);
    Posted first = post(pair.a, reach.route, page_request(Kind::read, pages, pages, 8), true);
    REQUIRE(first.what == Posted::What::posted);
    CHECK(post(pair.a, reach.route, page_request(Kind::read, pages, pages, 8), true).outcome == kWindowFull);
    CHECK(post(pair.a, reach.route, request(Kind::write, 0, 0, 8), true).what == Posted::What::posted);
    const std::vector<uint64_t> too_many((framed::kWindow + 1) * framed::kMaxTable, 0);
    CHECK(post(pair.a, reach.route, page_request(Kind::read, too_many, too_many, 8), true).what ==
          Posted::What::failed);
}

TEST_CASE("pressure: credits run out, and come back when notifications are taken") {
    for (const Path& path : every_path()) {
        if (path.remote != kHostDevice) {
            continue;
        }
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(64, path.local, path.remote, path.mapped);
        for (uint32_t i = 0; i < framed::kCredits; ++i) {
            REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, 8, i)) == kOk);
        }
        const Posted full = post(pair.a, reach.route, request(Kind::write, 0, 0, 8, 1), true);
        CHECK(full.what == Posted::What::retry);
        CHECK(full.outcome == kNoCredit);
        CHECK(post(pair.a, request(Kind::notify, 0, 0, 0, 1), true).outcome == kNoCredit);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 8)) == kOk); // needs no credit
        std::atomic<bool> over{false};
        std::jthread poller([&] { pair.a.engine->wait([&] { return over.load(); }, soon(), 0); });
        Outcome outcome{Status::pending, Reason::none};
        std::jthread blocked([&] { // this caller queues behind one that polls
            outcome = run(pair.a, reach.route, request(Kind::write, 0, 0, 8, framed::kCredits));
        });
        for (uint32_t i = 0; i <= framed::kCredits; ++i) {
            REQUIRE(notification(pair.b).value == i);
        }
        blocked.join();
        over.store(true);
        pair.a.engine->wake_waiters();
        CHECK(outcome == kOk);
        CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
    }
}

TEST_CASE("pressure: many threads post at once, every byte arrives") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        constexpr int kThreads = 6;
        constexpr size_t kEach = 700'000;
        std::atomic<int> wrong{0};
        std::vector<std::jthread> threads;
        std::vector<Reach> reaches;
        for (int t = 0; t < kThreads; ++t) {
            reaches.push_back(pair.reach(kEach, path.local, path.remote, path.mapped));
        }
        for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                const Reach& reach = reaches[static_cast<size_t>(t)];
                std::mt19937 random(static_cast<unsigned>(t));
                for (int round = 0; round < 6; ++round) {
                    const Bytes mine = pattern(kEach, static_cast<unsigned>(t * 100 + round));
                    pair.a.put(*reach.local, mine);
                    std::vector<Posted> ops;
                    for (size_t at = 0; at < kEach;) { // in pieces of all sizes, all in flight at once
                        const size_t sizes[] = {1, 200, 300, 5000, 70'000, 300'000};
                        const size_t nbytes = std::min(kEach - at, sizes[random() % 6]);
                        ops.push_back(post(pair.a, reach.route, request(Kind::write, at, at, nbytes)));
                        at += nbytes;
                    }
                    for (Posted& op : ops) {
                        wrong += pair.a.wait(std::move(op)).ok() ? 0 : 1;
                    }
                    wrong += pair.b.get(*reach.remote) == mine ? 0 : 1;
                    pair.a.put(*reach.local, Bytes(kEach, 0));
                    std::vector<uint64_t> pages(kEach / 1000);
                    std::iota(pages.begin(), pages.end(), uint64_t{0});
                    wrong += run(pair.a, reach.route, page_request(Kind::read, pages, pages, 1000)).ok() ? 0 : 1;
                    wrong += pair.a.get(*reach.local) == mine ? 0 : 1;
                }
            });
        }
        threads.clear();
        CHECK(wrong.load() == 0);
    }
}

TEST_CASE("pressure: both sides post all kinds at once") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        constexpr int kRounds = 150;
        const Reach forth = pair.reach(400'000);
        const auto back_local = pair.b.alloc(400'000);
        const auto back_remote = pair.a.alloc(400'000);
        Route back;
        back.endpoint = pair.b.lane;
        back.local = back_local;
        back.share = pair.a.engine->shares().add(back_remote, 0, 400'000, kReadWrite, kCapability);
        back.capability = kCapability;
        back.remote_nbytes = 400'000;
        back.rights = kReadWrite;
        const uint64_t back_route = pair.b.engine->add_route(back);
        std::atomic<int> wrong{0};
        const auto expect = [&](Outcome outcome) { wrong += outcome.ok() ? 0 : 1; };
        std::vector<std::jthread> threads;
        for (const bool here : {true, false}) {
            const Side& side = here ? pair.a : pair.b;
            const uint64_t route = here ? forth.route : back_route;
            threads.emplace_back([&, route] {
                for (int i = 0; i < kRounds; ++i) {
                    expect(run(side, route, request(Kind::write, 0, 0, 400'000, i)));
                    expect(run(side, route, request(Kind::read, 0, 0, 400'000)));
                }
            });
            threads.emplace_back([&, route] {
                for (int i = 0; i < kRounds; ++i) {
                    expect(run(side, route, request(Kind::fetch_add, 0, 8, 8)));
                    expect(side.wait(post(side, request(Kind::notify, 0, 0, 0, 7))));
                    expect(side.wait(post(side, request(Kind::flush, 0, 0, 0))));
                }
            });
            threads.emplace_back([&] {
                const auto out = side.alloc(50'000);
                const auto in = side.alloc(50'000);
                for (int i = 0; i < kRounds; ++i) {
                    Posted received = post(side, message(Kind::recv, in, 50'000));
                    expect(side.wait(post(side, message(Kind::send, out, i % 2 == 0 ? 50'000 : 100))));
                    expect(side.wait(std::move(received)));
                }
            });
            threads.emplace_back([&] {
                for (int i = 0; i < 2 * kRounds; ++i) {
                    static_cast<void>(notification(side));
                }
            });
        }
        threads.clear();
        CHECK(wrong.load() == 0);
        CHECK(pair.a.engine->operations().pending() == 0);
        CHECK(pair.b.engine->operations().pending() == 0);
    }
}

TEST_CASE("pressure: a large write goes on although nobody waits for it and another caller sleeps") {
    for (const Path& path : every_path()) {
        for (const bool caller_asleep : {false, true}) {
            CAPTURE(path.name);
            CAPTURE(caller_asleep);
            Pair pair(path.provider);
            const Reach reach = pair.reach(3 << 20, path.local, path.remote, path.mapped);
            const uint64_t sleeps = pair.a.engine->poller().sleeps();
            std::atomic<bool> over{false};
            std::jthread caller([&] {
                if (caller_asleep) {
                    pair.a.engine->wait([&] { return over.load(); }, 0, 0);
                }
            });
            CHECK((!caller_asleep || eventually([&] { return pair.a.engine->poller().sleeps() > sleeps; })));
            const auto queue = std::make_shared<CompletionQueue>();
            Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 0, 3 << 20));
            REQUIRE(posted.what == Posted::What::posted);
            CHECK((!posted.op->arm(queue, 1) || eventually([&] { return !queue->empty(); })));
            CHECK(posted.op->status() == Status::ok);
            over.store(true);
            pair.a.engine->wake_waiters();
        }
    }
}

} // namespace test_framed_pressure
