// Tests a verbs lane over RDMA devices in software: every byte of every kind of operation.
#ifdef ZEROHOP_VERBS

#include "verbs_fixture.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace test_verbs_lane {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kKi = 1024;
constexpr size_t kMi = kKi * kKi;

// Writes and reads this length, with guards on both sides.
void there_and_back(VerbsPair& pair, Reach& reach, size_t nbytes, unsigned seed) {
    CAPTURE(nbytes);
    constexpr size_t kFrom = 3;
    constexpr size_t kTo = 61;
    const size_t room = reach.local->nbytes();
    const Bytes mine = pattern(room, seed);
    Bytes theirs = pattern(room, seed + 1);
    pair.a.put(*reach.local, mine);
    pair.b.put(*reach.remote, theirs);
    REQUIRE(run(pair.a, reach.route, request(Kind::write, kFrom, kTo, nbytes)) == kOk);
    overlay(theirs, kTo, mine, kFrom, nbytes);
    REQUIRE(same_bytes(pair.b.get(*reach.remote), theirs));
    REQUIRE(same_bytes(pair.a.get(*reach.local), mine));

    Bytes back = pattern(room, seed + 2);
    pair.a.put(*reach.local, back);
    REQUIRE(run(pair.a, reach.route, request(Kind::read, kTo, kFrom, nbytes)) == kOk);
    overlay(back, kTo, theirs, kFrom, nbytes);
    REQUIRE(same_bytes(pair.a.get(*reach.local), back));
}

uint64_t statistic(const Side& side, const std::string& name) {
    const auto all = side.engine->statistics();
    for (const auto& [key, value] : all) {
        if (key.size() >= name.size() && key.compare(key.size() - name.size(), name.size(), name) == 0) {
            return value;
        }
    }
    return 0;
}

} // namespace

TEST_CASE("verbs lane: writes and reads, every byte, with guards") {
    VerbsPair pair;
    unsigned seed = 0;
    for (const size_t nbytes : {size_t{0}, size_t{1}, size_t{63}, size_t{219}, size_t{220}, size_t{221}, 4 * kKi - 1,
                                4 * kKi + 1, 16 * kKi, 16 * kKi + 1, kMi - 1, kMi, kMi + 1, 5 * kMi + 3}) {
        Reach reach = pair.reach(nbytes + 4096);
        there_and_back(pair, reach, nbytes, seed += 3);
    }
    CHECK(fake::census().misuses == 0);
}

TEST_CASE("verbs lane: what is small goes inline") {
    for (const size_t nbytes : {0, 1, 219, 220, 221}) {
        CAPTURE(nbytes);
        VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}})});
        const Reach reach = pair.reach(4096);
        const fake::Carried before = fake::carried(pair.end_a.queue_pairs[0]);
        REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, nbytes)) == kOk);
        const fake::Carried after = fake::carried(pair.end_a.queue_pairs[0]);
        CHECK(after.requests - before.requests == 1);
        CHECK(after.inlined - before.inlined == (nbytes <= 220 ? 1 : 0));
    }
}

TEST_CASE("verbs lane: device memory by alias and by dma-buf") {
    VerbsPair pair;
    for (const auto& [local, remote] : {std::pair{kSimDevice, kHostDevice}, {kHostDevice, kSimDevice}}) {
        Reach reach = pair.reach(300 * kKi, local, remote);
        there_and_back(pair, reach, 100, 1); // not inline, because the CPU must not read it
        there_and_back(pair, reach, 256 * kKi, 4);
    }
}

TEST_CASE("verbs lane: a transfer that is cut over several queue pairs of several devices") {
    const DomainOptions options = with(kRoce, {{"queue_pairs", 2}, {"stripe_bytes", 64 * kKi}, {"rail_bytes", kMi}});
    VerbsPair pair({.of_a = {fake::kRoce0, fake::kRoce1},
                    .of_b = {fake::kRoce1, fake::kRoce0},
                    .options_a = options,
                    .options_b = options});
    Reach reach = pair.reach(9 * kMi);
    there_and_back(pair, reach, 8 * kMi + 5, 1);
    for (const uint32_t number : pair.end_a.queue_pairs) {
        CHECK(fake::carried(number).requests > 8);
    }
    // The write is announced once, with all its bytes in place.
    REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, 8 * kMi, 77)) == kOk);
    const Notification note = notification(pair.b);
    CHECK(note.value == 77);
    CHECK(note.nbytes == 8 * kMi);
    CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false));
    CHECK(same_bytes(pair.b.get(*reach.remote, 0, 8 * kMi), pair.a.get(*reach.local, 0, 8 * kMi)));
}

TEST_CASE("verbs lane: one that is closed while it is being connected keeps its queue pairs until that is over") {
    VerbsPair pair;
    const End near = open_end(pair.a, pair.domains_a);
    const Address there = pair.b.lane->address();
    fake::hold_connects(true);
    std::thread connecting([&] { CHECK_THROWS_AS(near.lane->connect(there), const NativeError&); });
    REQUIRE(eventually([] { return fake::connects_waiting() == 1; }));
    pair.a.engine->close_endpoint(near.lane, kLaneReset);
    std::this_thread::sleep_for(std::chrono::milliseconds(200)); // longer than a lane waits for its device
    CHECK_FALSE(near.lane->idle());
    fake::hold_connects(false);
    connecting.join();
    CHECK(pair.a.engine->wait([&] { return near.lane->idle(); }, soon(), 0));
}

TEST_CASE("verbs lane: page lists") {
    VerbsPair pair;
    for (const uint64_t page_bytes : {uint64_t{1}, uint64_t{64}, uint64_t{4096}, uint64_t{20'000}}) {
        for (const size_t count : {size_t{1}, size_t{2}, size_t{33}, size_t{400}}) {
            CAPTURE(page_bytes);
            CAPTURE(count);
            const size_t of = count + 7;
            const Reach reach = pair.reach(of * page_bytes);
            const std::vector<uint64_t> here = shuffled(count, of, 1);
            const std::vector<uint64_t> there = shuffled(count, of, 2);
            const Bytes mine = pattern(of * page_bytes, 3);
            Bytes theirs = pattern(of * page_bytes, 4);
            pair.a.put(*reach.local, mine);
            pair.b.put(*reach.remote, theirs);
            REQUIRE(run(pair.a, reach.route, page_request(Kind::write, here, there, page_bytes, 5)) == kOk);
            CHECK(notification(pair.b).nbytes == count * page_bytes);
            for (size_t i = 0; i < count; ++i) {
                overlay(theirs, there[i] * page_bytes, mine, here[i] * page_bytes, page_bytes);
            }
            REQUIRE(same_bytes(pair.b.get(*reach.remote), theirs));

            Bytes back = pattern(of * page_bytes, 5);
            pair.a.put(*reach.local, back);
            REQUIRE(run(pair.a, reach.route, page_request(Kind::read, here, there, page_bytes)) == kOk);
            for (size_t i = 0; i < count; ++i) {
                overlay(back, here[i] * page_bytes, theirs, there[i] * page_bytes, page_bytes);
            }
            REQUIRE(same_bytes(pair.a.get(*reach.local), back));
        }
    }
}

TEST_CASE("verbs lane: notifications of writes of every size, and of none") {
    VerbsPair pair;
    const Reach reach = pair.reach(3 * kMi);
    uint32_t value = 0xffff'fff0;
    for (const size_t nbytes : {size_t{0}, size_t{1}, size_t{220}, size_t{221}, 64 * kKi, kMi, kMi + 1, 3 * kMi}) {
        CAPTURE(nbytes);
        const Bytes mine = pattern(nbytes, value);
        pair.a.put(*reach.local, mine);
        REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, nbytes, ++value)) == kOk);
        const Notification note = notification(pair.b);
        CHECK(note.value == value);
        CHECK(note.nbytes == nbytes);
        REQUIRE(same_bytes(pair.b.get(*reach.remote, 0, nbytes), mine));
    }
    Request bare = request(Kind::notify, 0, 0, 0, 9);
    REQUIRE(pair.a.wait(post(pair.a, bare)) == kOk);
    CHECK(notification(pair.b).value == 9);
}

TEST_CASE("verbs lane: a notification counts every piece, also when all of them but the last have ended before it") {
    VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}, {"send_depth", 32}, {"stripe_bytes", 4 * kKi}})});
    const Reach reach = pair.reach(40 * 4 * kKi);
    for (uint32_t pieces = 1; pieces <= 40; ++pieces) {
        CAPTURE(pieces);
        fake::hold_completions(true); // the queue fills up, and then all its requests end at once
        const Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 0, pieces * 4 * kKi, pieces));
        fake::hold_completions(false);
        REQUIRE(pair.a.wait(posted) == kOk);
        const Notification note = notification(pair.b);
        REQUIRE(note.value == pieces);
        REQUIRE(note.nbytes == pieces * 4 * kKi);
    }
}

TEST_CASE("verbs lane: what arrives is seen by who only writes, and never asks for it") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    Request bare = request(Kind::notify, 0, 0, 0, 9);
    for (int round = 0; round < 20; ++round) {
        CAPTURE(round);
        const auto writes = [&] { REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, 64)) == kOk); };
        for (int i = 0; i < 200; ++i) { // until the NIC's queues are armed, or left alone
            writes();
        }
        REQUIRE(pair.b.wait(post(pair.b, bare)) == kOk);
        CHECK(eventually([&] {
            writes();
            return pair.a.engine->pop_notification(0, 0, 0, false).has_value();
        }));
    }
}

TEST_CASE("verbs lane: messages through the stream, both ways") {
    VerbsPair pair;
    unsigned seed = 0;
    for (const size_t nbytes :
         {size_t{0}, size_t{1}, size_t{200}, size_t{8184}, size_t{8185}, 300 * kKi, 2 * kMi + 1}) {
        for (const bool forth : {true, false}) {
            CAPTURE(nbytes);
            CAPTURE(forth);
            const Side& from = forth ? pair.a : pair.b;
            const Side& to = forth ? pair.b : pair.a;
            const auto out = from.alloc(nbytes + 1);
            const auto in = to.alloc(nbytes + 1);
            const Bytes bytes = pattern(nbytes, ++seed);
            from.put(*out, bytes);
            const Posted received = post(to, message(Kind::recv, in, nbytes + 1));
            const Posted sent = post(from, message(Kind::send, out, nbytes));
            REQUIRE(from.wait(sent) == kOk);
            REQUIRE(to.wait(received) == kOk);
            CHECK(received.op->bytes_done() == nbytes);
            REQUIRE(same_bytes(to.get(*in, 0, nbytes), bytes));
        }
    }
}

TEST_CASE("verbs lane: memory that no NIC has a key to goes through the stream") {
    VerbsPair pair;
    Reach reach = pair.reach(600 * kKi);
    Route route = *pair.a.engine->route(reach.route);
    route.access.reset();
    reach.route = pair.a.engine->add_route(std::move(route));
    there_and_back(pair, reach, 512 * kKi + 1, 1);
}

TEST_CASE("verbs lane: atomics") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    const auto atomic = [&](Kind kind, uint64_t offset, uint64_t operand, uint64_t compare, Outcome expected) {
        Request each = request(kind, 0, offset, sizeof(uint64_t));
        each.operand = operand;
        each.compare = compare;
        const Posted posted = post(pair.a, reach.route, each);
        CHECK(pair.a.wait(posted) == expected);
        return posted.op ? posted.op->value() : 0;
    };
    for (uint64_t i = 0; i < 5; ++i) {
        CHECK(atomic(Kind::fetch_add, 64, 3, 0, kOk) == i * 3);
    }
    CHECK(atomic(Kind::compare_swap, 64, 100, 14, kOk) == 15);
    CHECK(atomic(Kind::compare_swap, 64, 100, 15, kOk) == 15);
    CHECK(atomic(Kind::fetch_add, 64, UINT64_MAX, 0, kOk) == 100);
    CHECK(atomic(Kind::fetch_add, 64, 0, 0, kOk) == 99);
    CHECK(atomic(Kind::fetch_add, 65, 1, 0, {Status::unsupported, Reason::misaligned}) == 0);
}

TEST_CASE("verbs lane: flush ends when what was written before is in place") {
    VerbsPair pair;
    const Reach reach = pair.reach(kMi);
    const Bytes mine = pattern(kMi, 1);
    pair.a.put(*reach.local, mine);
    for (int i = 0; i < 50; ++i) {
        std::vector<Posted> writes;
        for (size_t at = 0; at < kMi; at += 64 * kKi) {
            writes.push_back(post(pair.a, reach.route, request(Kind::write, at, at, 64 * kKi)));
        }
        REQUIRE(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk);
        for (const Posted& each : writes) {
            CHECK(each.op->done());
        }
    }
    CHECK(same_bytes(pair.b.get(*reach.remote), mine));
    CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk); // nothing was written since
}

TEST_CASE("verbs lane: a full queue is pushed back on, and a deadline ends a wait only") {
    VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}, {"send_depth", 32}})});
    const Reach reach = pair.reach(4096);
    fake::hold_requests(true);
    std::vector<Posted> posted;
    Posted last;
    for (;;) {
        last = post(pair.a, reach.route, request(Kind::write, 0, 0, 64), true);
        if (last.what != Posted::What::posted) {
            break;
        }
        posted.push_back(last);
        REQUIRE(posted.size() <= 32);
    }
    CHECK(last.what == Posted::What::retry);
    CHECK(last.outcome == Outcome{Status::would_block, Reason::window_full});
    CHECK(pair.waiting() == posted.size());
    fake::hold_requests(false);
    // The NIC has carried out all requests. A post looks at that itself, unless the engine's thread is about to.
    REQUIRE(eventually([&] {
        last = post(pair.a, reach.route, request(Kind::write, 0, 0, 64), true);
        return last.what != Posted::What::retry;
    }));
    CHECK(last.what == Posted::What::posted);
    posted.push_back(last);
    for (const Posted& each : posted) {
        CHECK(pair.a.wait(each) == kOk);
    }
    fake::hold_completions(true);
    const Posted late = post(pair.a, reach.route, request(Kind::write, 0, 0, 64, -1, now_ns() + kMillisecond));
    CHECK(pair.a.wait(late) == kDeadline);
    fake::hold_completions(false);
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 64)) == kOk);
    CHECK(fake::census().misuses == 0);
}

TEST_CASE("verbs lane: page lists longer than the queues, many at once") {
    const DomainOptions options = with(kRoce, {{"queue_pairs", 2}, {"send_depth", 64}});
    VerbsPair pair({.options_a = options, .options_b = options});
    constexpr size_t kPages = 500;
    const Reach reach = pair.reach(kPages * 512);
    const Bytes mine = pattern(kPages * 512, 1);
    pair.a.put(*reach.local, mine);
    const std::vector<uint64_t> pages = shuffled(kPages, kPages, 7);
    fake::hold_requests(true);
    std::vector<Posted> posted;
    for (int i = 0; i < 8; ++i) {
        posted.push_back(post(pair.a, reach.route, page_request(Kind::write, pages, pages, 512, i)));
    }
    fake::hold_requests(false);
    for (const Posted& each : posted) {
        CHECK(pair.a.wait(each) == kOk);
    }
    uint32_t values = 0;
    for (int i = 0; i < 8; ++i) {
        const Notification note = notification(pair.b);
        CHECK(note.nbytes == kPages * 512);
        values |= 1U << note.value;
    }
    CHECK(values == 0xff);
    CHECK(same_bytes(pair.b.get(*reach.remote), mine));
    CHECK(fake::census().misuses == 0);
}

TEST_CASE("verbs lane: as many queue pairs are used as both ends have") {
    for (const auto& [of_a, of_b] : {std::pair{1, 4}, {4, 1}, {3, 2}}) {
        CAPTURE(of_a);
        CAPTURE(of_b);
        VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", of_a}, {"stripe_bytes", 64 * kKi}}),
                        .options_b = with(kRoce, {{"queue_pairs", of_b}, {"stripe_bytes", 64 * kKi}})});
        Reach reach = pair.reach(2 * kMi);
        there_and_back(pair, reach, kMi, 1);
        REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, kMi, 3)) == kOk);
        CHECK(notification(pair.b).nbytes == kMi);
        CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk);
        const auto& numbers = pair.end_a.queue_pairs;
        for (size_t i = 0; i < numbers.size(); ++i) {
            CHECK((fake::carried(numbers[i]).requests != 0) == (i < static_cast<size_t>(std::min(of_a, of_b))));
        }
    }
}

TEST_CASE("verbs lane: two threads post while a third polls") {
    VerbsPair pair;
    constexpr size_t kEach = 2000;
    constexpr size_t kSlot = 256;
    const Reach reach = pair.reach(2 * kEach * kSlot);
    const Bytes mine = pattern(2 * kEach * kSlot, 1);
    pair.a.put(*reach.local, mine);
    std::atomic<bool> over{false};
    std::thread poller(
        [&] { pair.a.engine->wait([&] { return over.load(); }, soon(), pair.a.engine->options().spin_ns); });
    std::atomic<size_t> failed{0};
    std::vector<std::thread> posters;
    for (size_t thread = 0; thread < 2; ++thread) {
        posters.emplace_back([&, thread] {
            std::vector<Posted> posted;
            for (size_t i = thread * kEach; i < (thread + 1) * kEach; ++i) {
                Request each = request(Kind::write, i * kSlot, i * kSlot, kSlot, -1, soon());
                posted.push_back(post(pair.a, reach.route, each));
                failed += posted.back().what != Posted::What::posted;
            }
            for (const Posted& each : posted) {
                failed += each.op && !pair.a.wait(each).ok();
            }
        });
    }
    for (std::thread& poster : posters) {
        poster.join();
    }
    over.store(true);
    pair.a.engine->wake_waiters();
    poller.join();
    CHECK(failed == 0);
    CHECK(same_bytes(pair.b.get(*reach.remote), mine));
    CHECK(statistic(pair.a, "bytes_direct") == 2 * kEach * kSlot);
    CHECK(fake::census().misuses == 0);
}

TEST_CASE("verbs lane: nothing is left open") {
    const fake::Census before = fake::census();
    {
        VerbsPair pair;
        Reach reach = pair.reach(8192, kSimDevice, kSimDevice);
        there_and_back(pair, reach, 4096, 1);
        CHECK(fake::census().queue_pairs == before.queue_pairs + 4);
    }
    CHECK(fake::census() == before);
}

} // namespace test_verbs_lane

#endif
