// Tests the p2p lane over simulated devices: copies that devices carry out, what delays them, what waits for them, and
// what is left to the ring. test_p2p_notifications.cpp has the rings of notifications.
#include "p2p_fixture.hpp"

namespace test_p2p {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = (256 << 10) + 4096; // large enough for both kinds of copies

struct Ends {
    int local;
    int remote;
};
constexpr Ends kEnds[] = {
    {kSimDevice, kSimDevice}, {kSimDevice, kHostDevice}, {kHostDevice, kSimDevice}, {kHostDevice, kHostDevice}};

} // namespace

TEST_CASE("p2p: devices write to and read from a peer's memory, at every size and offset") {
    for (const auto& [local, remote] : kEnds) {
        CAPTURE(local);
        CAPTURE(remote);
        Pair pair("p2p");
        const Reach reach = reach_directly(pair, kBytes, local, remote);
        Bytes here = pattern(kBytes, 1);
        Bytes there = pattern(kBytes, 2);
        pair.a.put(*reach.local, here);
        pair.b.put(*reach.remote, there);
        uint64_t moved = 0;
        for (const size_t nbytes : {1, 63, 64, 65, 4095, 4096, 4097, (256 << 10) - 1, 256 << 10, (256 << 10) + 1}) {
            CAPTURE(nbytes);
            const size_t offset = nbytes % 1000;
            REQUIRE(run(pair.a, reach.route, request(Kind::write, offset, 7, nbytes)) == kOk);
            overlay(there, 7, here, offset, nbytes);
            REQUIRE(run(pair.a, reach.route, request(Kind::read, 3, offset, nbytes)) == kOk);
            overlay(here, 3, there, offset, nbytes);
            CHECK(same_bytes(pair.b.get(*reach.remote), there));
            CHECK(same_bytes(pair.a.get(*reach.local), here));
            moved += 2 * nbytes;
        }
        CHECK(copied(pair.a) == moved); // none went through the ring
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 0)) == kOk);
        CHECK(copied(pair.a) == moved);
    }
}

TEST_CASE("p2p: page lists, to pages in no order") {
    constexpr size_t kPages = 40;
    constexpr size_t kPage = 5000;
    for (const auto& [local, remote] : kEnds) {
        CAPTURE(local);
        CAPTURE(remote);
        Pair pair("p2p");
        const Reach reach = reach_directly(pair, kPages * kPage, local, remote);
        Bytes here = pattern(kPages * kPage, 3);
        Bytes there = pattern(kPages * kPage, 4);
        pair.a.put(*reach.local, here);
        pair.b.put(*reach.remote, there);
        const std::vector<uint64_t> ours = shuffled(15, kPages, 1);
        const std::vector<uint64_t> theirs = shuffled(15, kPages, 2);
        CHECK(run(pair.a, reach.route, page_request(Kind::write, ours, theirs, kPage, 9)) == kOk);
        for (size_t i = 0; i < ours.size(); ++i) {
            overlay(there, theirs[i] * kPage, here, ours[i] * kPage, kPage);
        }
        const Notification note = notification(pair.b);
        CHECK(note.value == 9);
        CHECK(note.nbytes == ours.size() * kPage);
        CHECK(same_bytes(pair.b.get(*reach.remote), there));
        CHECK(run(pair.a, reach.route, page_request(Kind::read, theirs, ours, kPage)) == kOk);
        for (size_t i = 0; i < ours.size(); ++i) {
            overlay(here, theirs[i] * kPage, there, ours[i] * kPage, kPage);
        }
        CHECK(same_bytes(pair.a.get(*reach.local), here));
        CHECK(copied(pair.a) == 2 * ours.size() * kPage);
    }
}

TEST_CASE("p2p: the device copies that has the memory here") {
    Pair pair("p2p", 2);
    for (const int local : {0, 1}) {
        const Reach reach = reach_directly(pair, kBytes, local, 1 - local);
        const Bytes bytes = pattern(kBytes, static_cast<unsigned>(local));
        pair.a.put(*reach.local, bytes);
        // Only copies of that device fail.
        pair.a.sim->inject(1 - local, accel::SimFault::copy, 1);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes)) == kOk);
        pair.a.sim->inject(1 - local, accel::SimFault::copy, 0);
        CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
    }
}

TEST_CASE("p2p: memory that no device here reaches goes through the ring, as do words and messages") {
    Pair pair("p2p");
    const Reach reach = pair.reach(kBytes, kHostDevice, kSimDevice);
    const Bytes bytes = pattern(kBytes, 5);
    pair.a.put(*reach.local, bytes);
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes, 3)) == kOk);
    CHECK(notification(pair.b).value == 3);
    CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
    Request word = request(Kind::notify, 0, 0, 0, 4);
    CHECK(pair.a.wait(post(pair.a, word)) == kOk);
    CHECK(notification(pair.b).value == 4);
    CHECK(copied(pair.a) == 0);
}

TEST_CASE("p2p: what a route does not allow is refused before a device hears of it") {
    Pair pair("p2p");
    const Reach readable = reach_directly(pair, 4096, kSimDevice, kSimDevice, kRightRead);
    const Outcome rights{Status::access_denied, Reason::rights};
    const Outcome bounds{Status::access_denied, Reason::bounds};
    CHECK(run(pair.a, readable.route, request(Kind::write, 0, 0, 1)) == rights);
    CHECK(run(pair.a, readable.route, request(Kind::read, 0, 4096, 1)) == bounds);
    CHECK(run(pair.a, readable.route, request(Kind::read, 0, 1, 4096)) == bounds);
    CHECK(run(pair.a, readable.route, request(Kind::read, 0, UINT64_MAX, 2)) == bounds);
    CHECK(run(pair.a, readable.route, page_request(Kind::read, {0}, {1}, 4096)) == bounds);
    CHECK(copied(pair.a) == 0);
    CHECK(run(pair.a, readable.route, request(Kind::read, 0, 0, 4096)) == kOk);
    // The mapping is closed here while the route is still known.
    const auto route = pair.a.engine->route(readable.route);
    CHECK(static_cast<const p2p::DeviceAccess&>(*route->access).memory->close());
    CHECK(run(pair.a, readable.route, request(Kind::read, 0, 0, 1)) == kRevoked);
    CHECK(copied(pair.a) == 4096);
}

TEST_CASE("p2p: a part of a peer's memory has bounds, rights and an end of its own, and holds the whole") {
    for (const int remote : {-1, 0}) {
        CAPTURE(remote);
        Pair pair("p2p");
        const std::shared_ptr<Region> theirs = pair.b.alloc(kBytes, remote);
        const std::shared_ptr<Region> ours = pair.a.alloc(kBytes, 0);
        Accelerators& accelerators = pair.a.engine->accelerators();
        const auto whole = import_from(pair, *theirs);
        CHECK_THROWS_AS(p2p::PeerMemory(whole, 1, kBytes, true), NativeError);
        CHECK_THROWS_AS(p2p::PeerMemory(whole, UINT64_MAX, 1, true), NativeError);
        const auto part = make_pinnable<p2p::PeerMemory>(whole, 1000, 64, false);
        CHECK(part->nbytes() == 64);
        CHECK(part->rights() == kRightRead);
        CHECK(part->reach(accelerators, *ours).address == whole->reach(accelerators, *ours).address + 1000);
        CHECK_FALSE(whole->leave_whole());
        CHECK_FALSE(whole->close());
        REQUIRE(part->close());
        CHECK(part->leave_whole());
        CHECK(whole->close());
        CHECK_THROWS_AS(p2p::PeerMemory(whole, 0, 1, true), NativeError);
    }
}

TEST_CASE("p2p: a copy that fails ends with what the device says, and the next one is not concerned") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    const Bytes bytes = pattern(4096, 6);
    pair.a.put(*reach.local, bytes);
    pair.a.sim->inject(0, accel::SimFault::copy, 1);
    const Outcome failed{Status::device_error, Reason::copy_failed};
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 4096)) == failed);
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 4096)) == kOk);
    CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
    CHECK(eventually([&] { return reach.local->pins() == 0; }));
}

TEST_CASE("p2p: a copy begins after the user's stream, and a stream of the user's waits for it") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    const Bytes bytes = pattern(4096, 7);
    pair.a.put(*reach.local, bytes);
    pair.b.put(*reach.remote, Bytes(4096, 0));
    HeldStream before(pair.a);
    const Posted held = post(pair.a, reach.route, after(before, request(Kind::write, 0, 0, 4096)));
    REQUIRE(held.what == Posted::What::posted);
    uint64_t number = 0;
    const auto waits = accel::user_stream(*pair.a.sim->devices()[0], number);
    pair.a.engine->hold_stream(held.op, pair.a.lane.get(), 0, number);
    const auto end = waits->record();
    // Another copy, which waits for no stream, overtakes it.
    const Reach other = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    CHECK(run(pair.a, other.route, request(Kind::write, 0, 0, 4096)) == kOk);
    CHECK_FALSE(held.op->done());
    CHECK(end->query() == accel::EventState::pending);
    CHECK(same_bytes(pair.b.get(*reach.remote), Bytes(4096, 0)));
    before.let_go();
    CHECK(pair.a.wait(held) == kOk);
    CHECK(accel::test::wait(end) == kOk);
    CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
}

TEST_CASE("p2p: a stream that is being captured is refused, and nothing is queued or announced") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    uint64_t number = 0;
    const auto user = accel::user_stream(*pair.a.sim->devices()[0], number);
    Request captured = request(Kind::write, 0, 0, 4096, 1);
    captured.after_stream = number;
    accel::set_capturing(number, true);
    CHECK(run(pair.a, reach.route, captured) == Outcome{Status::unsupported, Reason::capturing});
    CHECK(copied(pair.a) == 0);
    accel::set_capturing(number, false);
    captured.notify = 2;
    CHECK(run(pair.a, reach.route, captured) == kOk);
    CHECK(notification(pair.b).value == 2);
    CHECK(eventually([&] { return reach.local->pins() == 0; }));
}

TEST_CASE("p2p: when a lane closes its operations end, and their memory stays until the device is done") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    {
        HeldStream before(pair.a);
        const Posted held = post(pair.a, reach.route, after(before, request(Kind::write, 0, 0, 4096)));
        REQUIRE(held.what == Posted::What::posted);
        const Outcome closed{Status::closed, Reason::lane_closed};
        pair.a.engine->close_endpoint(pair.a.lane, closed);
        CHECK(pair.a.wait(held) == closed);
        CHECK_FALSE(reach.local->close()); // the memory is in use
        CHECK_FALSE(pair.a.lane->idle());
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 4096)) == closed);
    }
    CHECK(eventually([&] {
        pair.a.sync();
        return reach.local->pins() == 0;
    }));
    CHECK(eventually([&] { return pair.a.lane->idle(); }));
}

TEST_CASE("p2p: whoever begins to wait for a copy without a call has it looked at as soon as whoever calls") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    Engine& engine = *pair.a.engine;
    Poller& poller = engine.poller();
    int sooner = 0;
    for (const uint64_t limit = soon(); sooner < 3 && now_ns() < limit;) { // a busy machine may be late each time
        HeldStream before(pair.a);
        const Posted held = post(pair.a, reach.route, after(before, request(Kind::write, 0, 0, 4096)));
        REQUIRE(held.what == Posted::What::posted);
        std::this_thread::sleep_for(std::chrono::microseconds(200)); // longer than the copy should have taken
        // The poller sleeps for some milliseconds, as after a kick.
        uint64_t wakes_at = 0;
        REQUIRE(eventually([&] {
            poller.limit_sleep(now_ns(), 4 * kMillisecond);
            wakes_at = poller.wakes_at();
            return wakes_at > now_ns() + kMillisecond;
        }));
        const auto queue = std::make_shared<CompletionQueue>();
        REQUIRE(held.op->arm(queue, 1));
        engine.note_awaited();
        while (poller.wakes_at() == wakes_at && now_ns() < wakes_at) {
            std::this_thread::yield();
        }
        sooner += now_ns() + kMillisecond / 2 < wakes_at ? 1 : 0;
        before.let_go();
        CHECK(pair.a.wait(held) == kOk);
    }
    CHECK(sooner == 3);
}

TEST_CASE("p2p: it is looked for the end of a copy when somebody cares, and neither long before nor rarely after") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    const Endpoint& lane = *pair.a.lane;
    constexpr uint64_t kHour = 3600 * kSecond;
    const uint64_t start = now_ns();
    CHECK(lane.backlog(start, true).look_in_ns == UINT64_MAX); // there is no copy
    CHECK_FALSE(lane.backlog(start, true).in_device);
    HeldStream before(pair.a);
    const Posted silent = post(pair.a, reach.route, after(before, request(Kind::write, 0, 0, 4096)));
    REQUIRE(silent.what == Posted::What::posted);
    CHECK(lane.backlog(start, true).in_device);
    // Nobody waits, and nobody must be notified.
    CHECK(lane.backlog(now_ns(), false).look_in_ns == UINT64_MAX);
    // A caller waits: from `first` on the copy is polled without pause, then again and again.
    const uint64_t past = start - std::min(start, kHour);
    const uint64_t first = past + lane.backlog(past, true).look_in_ns;
    CHECK(first > past);
    CHECK(lane.backlog(first - 1, true).look_in_ns == 1);
    CHECK(lane.backlog(first, true).look_in_ns == 0);
    for (const uint64_t later : {kMicrosecond, 20 * kMicrosecond, kMillisecond, kSecond, kHour}) {
        CHECK(lane.backlog(first + later, true).look_in_ns <= kDeviceInterval);
    }
    CHECK(lane.backlog(first + kHour, true).look_in_ns == kDeviceInterval);
    // A copy with a notification is polled precisely if the peer is asleep, and soon enough if it may yet fall asleep.
    const Posted told = post(pair.a, reach.route, after(before, request(Kind::write, 0, 0, 4096, 1)));
    REQUIRE(told.what == Posted::What::posted);
    const PeerPresence& peer = *pair.a.peer->presence();
    REQUIRE(eventually([&] { return peer.sleeping(); }));
    CHECK(lane.backlog(past, false).look_in_ns == lane.backlog(past, true).look_in_ns);
    CHECK(lane.backlog(first + kHour, false).look_in_ns == kDeviceInterval);
    {
        std::atomic<bool> stop{false};
        const std::jthread awake([&] { CHECK(pair.b.engine->wait([&] { return stop.load(); }, soon(), kHour)); });
        CHECK(eventually([&] { return !peer.sleeping(); }));
        CHECK(lane.backlog(past, false).look_in_ns == lane.backlog(first + kHour, false).look_in_ns);
        CHECK(lane.backlog(past, false).look_in_ns > kDeviceInterval);
        CHECK(lane.backlog(past, false).look_in_ns < kSecond);
        stop.store(true);
    }
    before.let_go();
    CHECK(pair.a.wait(silent) == kOk);
    CHECK(pair.a.wait(told) == kOk);
    CHECK(notification(pair.b).value == 1);
    CHECK(lane.backlog(past, true).look_in_ns == UINT64_MAX);
}

} // namespace test_p2p
