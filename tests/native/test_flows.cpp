// Tests a tcp lane of several sockets, whose large transfers go in parts over all but the first of them.
#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"

#include <sys/ioctl.h>

namespace test_flows {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = (9 << 20) + 12'345; // no multiple of anything

// A pair whose flows' sockets the test keeps, beside the lanes.
struct Flows {
    explicit Flows(int count = 3) : a(0), b(0) {
        introduce(a, b);
        a.lane = a.engine->add_endpoint("tcp", a.peer->id());
        b.lane = b.engine->add_endpoint("tcp", b.peer->id());
        Address of_a;
        Address of_b;
        for (int i = 0; i <= count; ++i) {
            const Sockets sockets = connected_sockets();
            of_a.fds.push_back(sockets.a);
            of_b.fds.push_back(sockets.b);
            kept.emplace_back(sockets.a);
            kept.emplace_back(sockets.b);
        }
        a.lane->connect(of_a);
        b.lane->connect(of_b);
    }
    ~Flows() {
        a.close();
        b.close();
    }
    Flows(const Flows&) = delete;
    Flows& operator=(const Flows&) = delete;

    Side a;
    Side b;
    std::vector<Descriptor> kept; // a's and b's in turn; the first two are the lane's own
};

uint64_t sum(const Side& side, const char* what) {
    return side.engine->statistics()[what];
}

} // namespace

TEST_CASE("flows: both ways, any offset and size, and every part in its place") {
    for (const std::string way : {"flows", "tls flows"}) {
        Pair pair(way);
        Reach reach = pair.reach(kBytes);
        for (const size_t nbytes : {kBytes - 77, size_t{1} << 20, (size_t{1} << 20) - 1, size_t{1536} * 1024 + 1}) {
            CAPTURE(nbytes);
            const Bytes there = pattern(kBytes, static_cast<unsigned>(nbytes));
            pair.a.put(*reach.local, there);
            pair.b.put(*reach.remote, Bytes(kBytes, 0xee));
            REQUIRE(run(pair.a, reach.route, request(Kind::write, 13, 41, nbytes)).ok());
            Bytes expected(kBytes, 0xee);
            overlay(expected, 41, there, 13, nbytes);
            CHECK(same_bytes(pair.b.get(*reach.remote), expected));
            pair.a.put(*reach.local, Bytes(kBytes, 0x11));
            REQUIRE(run(pair.a, reach.route, request(Kind::read, 5, 41, nbytes)).ok());
            Bytes back(kBytes, 0x11);
            overlay(back, 5, expected, 41, nbytes);
            CHECK(same_bytes(pair.a.get(*reach.local), back));
        }
    }
}

TEST_CASE("flows: a notification comes when every part is in its place") {
    Pair pair("flows");
    Reach reach = pair.reach(kBytes);
    for (uint32_t round = 0; round < 20; ++round) {
        const Bytes bytes = pattern(kBytes, round);
        pair.a.put(*reach.local, bytes);
        const Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 0, kBytes, round));
        const Notification note = notification(pair.b);
        CHECK(note.value == round);
        CHECK(note.nbytes == kBytes);
        CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
        REQUIRE(pair.a.wait(posted).ok());
        REQUIRE(run(pair.a, reach.route, request(Kind::read, 0, 0, kBytes, round)).ok());
        CHECK(notification(pair.b).nbytes == kBytes);
    }
}

TEST_CASE("flows: a flush waits for what the flows carry") {
    Pair pair("flows");
    Reach reach = pair.reach(kBytes);
    for (unsigned round = 0; round < 10; ++round) {
        const Posted large = post(pair.a, reach.route, request(Kind::write, 0, 0, kBytes));
        Request flush;
        flush.kind = Kind::flush;
        REQUIRE(pair.a.wait(post(pair.a, flush)).ok());
        CHECK(large.op->done());
    }
}

TEST_CASE("flows: many at once, more than the window") {
    Pair pair("flows");
    constexpr size_t kPart = 1 << 20;
    Reach reach = pair.reach(4 * kPart);
    pair.a.put(*reach.local, pattern(4 * kPart, 1));
    std::vector<Posted> all;
    all.reserve(1200);
    for (size_t i = 0; i < 1200; ++i) {
        all.push_back(post(pair.a, reach.route, request(Kind::write, i % 4 * kPart, i % 4 * kPart, kPart)));
        REQUIRE(all.back().what == Posted::What::posted);
    }
    for (const Posted& posted : all) {
        REQUIRE(pair.a.wait(posted).ok());
    }
    CHECK(same_bytes(pair.b.get(*reach.remote), pattern(4 * kPart, 1)));
    CHECK(eventually([&] { return reach.local->pins() == 0 && reach.remote->pins() == 0; }));
}

TEST_CASE("flows: a range that is not shared, and rights that are not given, are refused as a whole") {
    Pair pair("flows");
    Reach reach = pair.reach(kBytes, kHostDevice, kHostDevice, false, kRightRead);
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes)) ==
          Outcome{Status::access_denied, Reason::rights});
    CHECK(run(pair.a, reach.route, request(Kind::read, 0, 1, kBytes)) ==
          Outcome{Status::access_denied, Reason::bounds});
    // A side that lies to itself about the rights hears it from the other, and the lane stays.
    Reach lies = pair.reach(kBytes, kHostDevice, kHostDevice, false, kRightRead);
    lies.route = pair.a.engine->add_route(pair.route(lies, kBytes, kReadWrite));
    CHECK(run(pair.a, lies.route, request(Kind::write, 0, 0, kBytes, 7)) ==
          Outcome{Status::access_denied, Reason::rights});
    CHECK(run(pair.a, lies.route, request(Kind::read, 0, 0, kBytes)).ok());
    CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
}

TEST_CASE("flows: a deadline ends the whole, and later operations are right") {
    Pair pair("flows");
    Reach reach = pair.reach(kBytes);
    for (unsigned round = 0; round < 10; ++round) {
        pair.a.put(*reach.local, Bytes(kBytes, 1));
        const Outcome late = run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes, -1, now_ns() + 100'000));
        CHECK((late.ok() || late == kDeadline));
        CHECK(eventually([&] { return reach.local->pins() == 0; }));
        const Bytes bytes = pattern(kBytes, round);
        pair.a.put(*reach.local, bytes);
        REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes)).ok());
        CHECK(same_bytes(pair.b.get(*reach.remote), bytes));
    }
}

TEST_CASE("flows: the loss of one of its sockets ends everything to the peer") {
    for (const size_t broken : {size_t{0}, size_t{2}, size_t{7}}) {
        CAPTURE(broken);
        Flows flows;
        auto local = flows.a.alloc(kBytes);
        auto remote = flows.b.alloc(kBytes);
        const ShareId share = flows.b.engine->shares().add(remote, 0, kBytes, kReadWrite, kCapability);
        Route route;
        route.endpoint = flows.a.lane;
        route.local = local;
        route.share = share;
        route.capability = kCapability;
        route.remote_nbytes = kBytes;
        route.rights = kReadWrite;
        const uint64_t id = flows.a.engine->add_route(route);
        route.endpoint.reset();
        REQUIRE(run(flows.a, id, request(Kind::write, 0, 0, kBytes)).ok());
        const Posted posted = post(flows.a, id, request(Kind::write, 0, 0, kBytes));
        ::shutdown(flows.kept[broken].get(), SHUT_RDWR);
        const Outcome outcome = flows.a.wait(posted);
        CHECK((outcome.ok() || outcome.status == Status::peer_lost));
        CHECK(eventually([&] { return !flows.a.lane->state().ok() && !flows.b.lane->state().ok(); }));
        CHECK(eventually([&] { return local->pins() == 0 && remote->pins() == 0; }));
        CHECK(run(flows.a, id, request(Kind::write, 0, 0, kBytes)).status == Status::peer_lost);
    }
}

TEST_CASE("flows: they carry pieces of large transfers, and a peer that sends anything else is cut off") {
    using framed::FrameHeader;
    using framed::FrameKind;
    for (const FrameKind kind : {FrameKind::send, FrameKind::notify, FrameKind::fetch_add, FrameKind::write}) {
        CAPTURE(static_cast<int>(kind));
        Flows flows;
        FrameHeader header{.kind = kind};
        header.flags = framed::kLast;
        if (kind == FrameKind::write) {
            header.announce(3);
        }
        header.table = kind == FrameKind::fetch_add ? 1 : 0;
        std::vector<std::byte> frame(sizeof header + size_t{header.table} * 8);
        std::memcpy(frame.data(), &header, sizeof header);
        REQUIRE(::send(flows.kept[4].get(), frame.data(), frame.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(frame.size()));
        CHECK(eventually([&] { return !flows.b.lane->state().ok(); }));
        CHECK(flows.b.lane->state() == kMalformed);
        CHECK_FALSE(flows.b.engine->pop_notification(0, 0, 0, false).has_value());
    }
}

TEST_CASE("flows: a peer that a thread of flows finds lost takes its lanes with it, whatever the poller sleeps for") {
    for (int round = 0; round < 60; ++round) {
        Flows flows;
        // Beside a tick, after which nothing is to be done any more.
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        flows.b.engine->lose_peer(*flows.b.peer, kMalformed);
        REQUIRE(eventually([&] { return !flows.b.lane->state().ok(); }));
        CHECK(flows.b.lane->state() == kMalformed);
    }
}

TEST_CASE("flows: an engine that closes in the middle ends its operations, and its memory is free") {
    for (int round = 0; round < 20; ++round) {
        auto flows = std::make_unique<Flows>(round % 5 + 1);
        auto local = flows->a.alloc(kBytes);
        auto remote = flows->b.alloc(kBytes);
        Route route;
        route.endpoint = flows->a.lane;
        route.local = local;
        route.share = flows->b.engine->shares().add(remote, 0, kBytes, kReadWrite, kCapability);
        route.capability = kCapability;
        route.remote_nbytes = kBytes;
        route.rights = kReadWrite;
        const uint64_t id = flows->a.engine->add_route(route);
        route.endpoint.reset();
        std::vector<Posted> all;
        all.reserve(8);
        for (int i = 0; i < 8; ++i) {
            all.push_back(post(flows->a, id, request(i % 2 == 0 ? Kind::write : Kind::read, 0, 0, kBytes)));
        }
        (round % 2 == 0 ? flows->a : flows->b).close();
        for (const Posted& posted : all) {
            [[maybe_unused]] const Outcome any = flows->a.wait(posted);
        }
        all.clear(); // before the engine that they are of
        flows.reset();
        CHECK(local->pins() == 0);
        CHECK(remote->pins() == 0);
    }
}

TEST_CASE("flows: both sides at once, large and small together") {
    Pair pair("flows");
    Reach reach = pair.reach(kBytes);
    Reach back{.local = pair.b.alloc(kBytes), .remote = pair.a.alloc(kBytes), .share = {}, .mapping = {}, .route = 0};
    back.share = pair.a.engine->shares().add(back.remote, 0, kBytes, kReadWrite, kCapability);
    Route route;
    route.endpoint = pair.b.lane;
    route.local = back.local;
    route.share = back.share;
    route.capability = kCapability;
    route.remote_nbytes = kBytes;
    route.rights = kReadWrite;
    back.route = pair.b.engine->add_route(route);
    pair.a.put(*reach.local, pattern(kBytes, 1));
    pair.b.put(*back.local, pattern(kBytes, 2));
    const auto many = [](const Side& side, uint64_t id) {
        for (int i = 0; i < 20; ++i) {
            CHECK(run(side, id, request(i % 3 == 2 ? Kind::read : Kind::write, 0, 0, kBytes)).ok());
            CHECK(run(side, id, request(Kind::write, 0, 0, 1000)).ok());
        }
    };
    std::jthread there([&] { many(pair.a, reach.route); });
    many(pair.b, back.route);
    there.join();
    CHECK(same_bytes(pair.b.get(*reach.remote), pattern(kBytes, 1)));
    CHECK(same_bytes(pair.a.get(*back.remote), pattern(kBytes, 2)));
    CHECK(sum(pair.a, "bytes_sent") >= 14 * kBytes);
}

} // namespace test_flows
