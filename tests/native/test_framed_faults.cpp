// Tests faults on an honest lane: a stopped peer, cancelled operations, devices that fail, closing in flight.
#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"

namespace test_framed_faults {

using namespace zerohop;
using namespace zerohop::test;

namespace {

const Outcome kCopyFailed{Status::device_error, Reason::copy_failed};
const Outcome kLost{Status::device_error, Reason::device_lost};
constexpr size_t kBytes = 1 << 20;

uint64_t in_a_moment() {
    return now_ns() + 2 * kMillisecond;
}

} // namespace

TEST_CASE("fault: a stopped peer is a deadline, and late answers write into nothing") {
    for (const Path& path : every_path()) {
        if (path.mapped || path.provider.ends_with("flows")) {
            continue; // a mapped copy needs nothing from the peer, and threads of a stopped poller's flows go on
        }
        for (const size_t nbytes : {size_t{8}, size_t{5000}, 3 * kBytes}) {
            CAPTURE(path.name);
            CAPTURE(nbytes);
            Pair pair(path.provider);
            // On devices an atomic is a read and a write. If it comes late, it may undo a write that overtakes it, so
            // it has a word of its own.
            constexpr size_t kWord = 3 * kBytes;
            const Reach reach = pair.reach(kWord + 8, path.local, path.remote);
            const Bytes mine = pattern(kWord + 8, 1);
            pair.a.put(*reach.local, mine);
            {
                const Stopped stopped(pair.b);
                std::vector<Request> requests{request(Kind::write, 0, 0, nbytes, 1, in_a_moment()),
                                              request(Kind::read, 0, 0, nbytes, -1, in_a_moment()),
                                              request(Kind::fetch_add, 0, kWord, 8, -1, in_a_moment())};
                for (const Request& r : requests) {
                    Posted posted = post(pair.a, reach.route, r);
                    CHECK(pair.a.wait(posted.op) == kDeadline);
                }
                Posted send = post(pair.a, message(Kind::send, reach.local, nbytes, in_a_moment()));
                CHECK(pair.a.wait(send.op) == kDeadline);
                Posted flush = post(pair.a, request(Kind::flush, 0, 0, 0, -1, in_a_moment()));
                CHECK(pair.a.wait(flush.op) == kDeadline);
                CHECK(reach.local->pins() != 0); // the late answer must not find freed memory
                CHECK(pair.a.engine->operations().pending() == 0);
            }
            // The peer goes on.
            CHECK(eventually([&] { return reach.local->pins() == 0; }));
            CHECK(same_bytes(pair.a.get(*reach.local), mine));
            CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, nbytes)) == kOk); // the lane lives on
            CHECK(same_bytes(pair.b.get(*reach.remote, 0, nbytes),
                             {mine.begin(), mine.begin() + static_cast<long>(nbytes)}));
        }
    }
}

TEST_CASE("fault: a deadline that nobody waits for passes all the same") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const bool caller_asleep : {false, true}) {
            CAPTURE(provider);
            CAPTURE(caller_asleep);
            Pair pair(provider);
            const Reach reach = pair.reach(64);
            const uint64_t sleeps = pair.a.engine->poller().sleeps();
            std::atomic<bool> over{false};
            std::thread caller([&] {
                if (caller_asleep) { // the caller has the right to poll, and no deadline of its own
                    pair.a.engine->wait([&] { return over.load(); }, 0, 0);
                }
            });
            CHECK((!caller_asleep || eventually([&] { return pair.a.engine->poller().sleeps() > sleeps; })));
            const auto queue = std::make_shared<CompletionQueue>();
            const Stopped stopped(pair.b);
            Posted posted = post(pair.a, reach.route, request(Kind::read, 0, 0, 64, -1, in_a_moment()));
            const bool armed = posted.op->arm(queue, 1); // false if the deadline has passed already
            CHECK((!armed || eventually([&] { return !queue->empty(); })));
            CHECK(posted.op->status() == Status::deadline);
            over.store(true);
            pair.a.engine->wake_waiters();
            caller.join();
        }
    }
}

TEST_CASE("fault: a cancelled read never touches its buffer again") {
    for (const Path& path : every_path()) {
        if (path.provider.ends_with("flows")) {
            continue; // their threads go on while the poller is stopped
        }
        for (const size_t nbytes : {size_t{1}, size_t{300}, 3 * kBytes}) {
            CAPTURE(path.name);
            CAPTURE(nbytes);
            Pair pair(path.provider);
            const Reach reach = pair.reach(3 * kBytes, path.local, path.remote, path.mapped);
            pair.b.put(*reach.remote, Bytes(3 * kBytes, 0xAA));
            std::vector<uint64_t> pages(nbytes / 100);
            for (size_t i = 0; i < pages.size(); ++i) {
                pages[i] = i;
            }
            const Bytes mine = pattern(3 * kBytes, 4);
            {
                const Stopped stopped_there(pair.b);
                const Stopped stopped_here(pair.a);
                Posted whole = post(pair.a, reach.route, request(Kind::read, 0, 0, nbytes));
                Posted paged = post(pair.a, reach.route, page_request(Kind::read, pages, pages, 100));
                for (Posted* posted : {&whole, &paged}) {
                    if (posted->what == Posted::What::posted) {
                        posted->op->finish(kCancelled);
                    }
                }
                if (path.local == kHostDevice) { // a mapped copy of a device may have begun: its copies end first
                    std::copy(mine.begin(), mine.end(), reinterpret_cast<uint8_t*>(reach.local->host()));
                }
            }
            CHECK(eventually([&] { return reach.local->pins() == 0; }));
            if (path.local == kHostDevice) {
                CHECK(same_bytes(pair.a.get(*reach.local), mine));
            } else if (!path.mapped) {
                CHECK(pair.a.get(*reach.local, 0, 1) != Bytes(1, 0xAA));
            }
            CHECK(run(pair.a, reach.route, request(Kind::read, 0, 0, nbytes)) == kOk);
            CHECK(same_bytes(pair.a.get(*reach.local, 0, nbytes), Bytes(nbytes, 0xAA)));
        }
    }
}

TEST_CASE("fault: cancelled at any moment, the memory comes back and the lane goes on") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(2 * kBytes, path.local, path.remote, path.mapped);
        for (int round = 0; round < 60; ++round) {
            const Kind kind = round % 2 == 0 ? Kind::write : Kind::read;
            Posted posted =
                post(pair.a, reach.route, request(kind, 0, 0, 2 * kBytes, kind == Kind::write ? round : -1));
            for (int spins = round * 300; spins != 0; --spins) {
                cpu_pause();
            }
            if (posted.what == Posted::What::posted && posted.op->finish(kCancelled)) {
                CHECK(pair.a.wait(posted.op) == kCancelled);
            }
            while (pair.b.engine->pop_notification(0, 0, 0, false)) {
            }
        }
        CHECK(eventually([&] { return reach.local->pins() == 0; }));
        const Bytes mine = pattern(2 * kBytes, 9);
        pair.a.put(*reach.local, mine);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 2 * kBytes)) == kOk);
        CHECK(same_bytes(pair.b.get(*reach.remote), mine));
    }
}

TEST_CASE("fault: a copy that fails, on either side") {
    for (const Path& path : every_path()) {
        for (const bool at_source : {false, true}) {
            if ((at_source ? path.local : path.remote) == kHostDevice) {
                continue;
            }
            CAPTURE(path.name);
            CAPTURE(at_source);
            Pair pair(path.provider);
            const Reach reach = pair.reach(3 * kBytes, path.local, path.remote, path.mapped);
            accel::SimDriver& sim = at_source ? *pair.a.sim : *pair.b.sim;
            for (int round = 0; round < 50; ++round) { // more often than there are staging buffers
                const Kind kind = round % 2 == 0 ? Kind::write : Kind::read;
                sim.inject(0, accel::SimFault::copy, 1 + round % 3);
                Posted posted =
                    post(pair.a, reach.route, request(kind, 0, 0, 3 * kBytes, kind == Kind::write ? 1 : -1));
                CHECK(pair.a.wait(posted.op) == kCopyFailed);
                CHECK(posted.op->bytes_done() == 0);
                sim.inject(0, accel::SimFault::copy, 0);
            }
            CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
            CHECK(eventually([&] { return reach.local->pins() == 0; }));
            const Bytes mine = pattern(3 * kBytes, 9);
            pair.a.put(*reach.local, mine);
            CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 3 * kBytes, 6)) == kOk);
            CHECK(notification(pair.b).value == 6);
            CHECK(same_bytes(pair.b.get(*reach.remote), mine));
        }
    }
}

TEST_CASE("fault: a device that is lost in flight ends its operations and nobody else's") {
    for (const Path& path : every_path()) {
        for (const bool at_source : {false, true}) {
            if ((at_source ? path.local : path.remote) == kHostDevice) {
                continue;
            }
            CAPTURE(path.name);
            CAPTURE(at_source);
            Pair pair(path.provider);
            const Reach reach = pair.reach(3 * kBytes, path.local, path.remote, path.mapped);
            const Reach host = pair.reach(3 * kBytes);
            Side& side = at_source ? pair.a : pair.b;
            side.sim->delay(0, UINT64_MAX, 0); // nothing is done before the device is lost
            std::vector<Posted> ops;
            for (int i = 0; i < 6; ++i) {
                const Kind kind = i % 2 == 0 ? Kind::write : Kind::read;
                ops.push_back(post(pair.a, reach.route, request(kind, 0, 0, 3 * kBytes)));
            }
            Posted atomic = post(pair.a, reach.route, request(Kind::fetch_add, 0, 0, 8));
            side.sim->inject(0, accel::SimFault::lost, 1);
            for (Posted& op : ops) {
                CHECK(pair.a.wait(op.op) == kLost);
            }
            if (!at_source) {
                CHECK(pair.a.wait(std::move(atomic)) == kLost);
            }
            CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 100)) == kLost);
            CHECK(run(pair.a, host.route, request(Kind::write, 0, 0, 3 * kBytes)) == kOk);
            CHECK(eventually([&] { return reach.local->pins() == 0; }));
            pair.b.sync();
            CHECK(eventually([&] { return reach.remote->pins() == 0; }));
        }
    }
}

TEST_CASE("fault: closed in flight, by either side") {
    for (const Path& path : every_path()) {
        for (const bool here : {true, false}) {
            for (const bool whole_engine : {false, true}) {
                CAPTURE(path.name);
                CAPTURE(here);
                CAPTURE(whole_engine);
                Pair pair(path.provider);
                const Reach reach = pair.reach(3 * kBytes, path.local, path.remote, path.mapped);
                pair.a.sim->delay(0, kMillisecond, 0);
                pair.b.sim->delay(0, kMillisecond, 0);
                std::vector<Posted> ops;
                for (int i = 0; i < 20; ++i) {
                    const Kind kind = i % 2 == 0 ? Kind::write : Kind::read;
                    ops.push_back(post(pair.a, reach.route, request(kind, 0, 0, 3 * kBytes)));
                }
                ops.push_back(post(pair.a, message(Kind::recv, reach.local, 100)));
                ops.push_back(post(pair.a, message(Kind::send, reach.local, 100'000)));
                Side& closer = here ? pair.a : pair.b;
                if (whole_engine) {
                    CHECK(closer.engine->close(soon()));
                } else {
                    closer.engine->close_endpoint(closer.lane, {Status::closed, Reason::lane_closed});
                }
                const Outcome expected = here && whole_engine ? Outcome{Status::closed, Reason::context_closed}
                                         : here               ? Outcome{Status::closed, Reason::lane_closed}
                                         : whole_engine       ? Outcome{Status::peer_lost, Reason::context_closed}
                                                              : Outcome{Status::peer_lost, Reason::peer_closed};
                // A lane that ends in the middle of a frame shows its end alone.
                const Outcome cut_short = here ? expected : Outcome{Status::peer_lost, Reason::stream_closed};
                const auto ended = [&](Outcome outcome) { return outcome == expected || outcome == cut_short; };
                for (Posted& op : ops) {
                    const Outcome outcome = pair.a.wait(std::move(op));
                    CHECK((ended(outcome) || outcome == kOk)); // some may have ended before
                }
                CHECK(ended(pair.a.wait(post(pair.a, request(Kind::notify, 0, 0, 0, 1)))));
                CHECK(eventually([&] { return reach.local->pins() == 0; }));
                CHECK(eventually([&] { return reach.remote->pins() == 0; }));
                CHECK(pair.a.engine->operations().pending() == 0);
            }
        }
    }
}

TEST_CASE("fault: closed while other threads post") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        for (int round = 0; round < 5; ++round) {
            Pair pair(path.provider);
            const Reach reach = pair.reach(kBytes, path.local, path.remote, path.mapped);
            std::atomic<int> ready{0};
            std::vector<std::jthread> threads;
            for (int t = 0; t < 3; ++t) {
                threads.emplace_back([&, t] {
                    for (int i = 0;; ++i) {
                        const size_t nbytes = t == 0 ? 8 : t == 1 ? 5000 : 300'000;
                        const Outcome outcome =
                            run(pair.a, reach.route, request(i % 2 == 0 ? Kind::write : Kind::read, 0, 0, nbytes));
                        ready.fetch_add(1);
                        if (!outcome.ok()) {
                            CHECK((outcome.status == Status::closed || outcome.status == Status::peer_lost));
                            return;
                        }
                    }
                });
            }
            REQUIRE(eventually([&] { return ready.load() > 10 * round; }));
            if (round % 2 == 0) {
                pair.a.engine->close_endpoint(pair.a.lane, {Status::closed, Reason::lane_closed});
            } else {
                CHECK(pair.b.engine->close(soon()));
            }
            threads.clear();
            CHECK(eventually([&] { return reach.local->pins() == 0; }));
        }
    }
}

} // namespace test_framed_faults
