// Tests the engine as a whole: waiting in all ways at once, notifications, closing and destroying in every state, fork.
#include "engine_fixture.hpp"

#include <csignal>
#include <sys/wait.h>

namespace test_engine {

using namespace zerohop;
using namespace zerohop::test;

namespace {

void tick(const Side& side, uint64_t now) {
    side.engine->poller().exclusive([&] { side.lane->tick(now); });
}

// One side ticks, and the other receives its heartbeat.
void beat(const Side& from, const Side& to, uint64_t now) {
    to.engine->poller().exclusive([&] {
        tick(from, now);
        REQUIRE(eventually([&] { return to.lane->poll() == Progress::made; }));
    });
}

} // namespace

TEST_CASE("engine: several threads take notifications, each is taken once") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        constexpr int kThreads = 4;
        constexpr int kEach = 500;
        std::vector<std::atomic<int>> taken(kThreads * kEach);
        std::vector<std::jthread> threads;
        for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([&] {
                for (int i = 0; i < kEach; ++i) {
                    taken.at(notification(pair.b).value).fetch_add(1);
                }
            });
        }
        for (int i = 0; i < kThreads * kEach; ++i) {
            REQUIRE(pair.a.wait(post(pair.a, request(Kind::notify, 0, 0, 0, i))) == kOk);
        }
        threads.clear();
        CHECK(std::all_of(taken.begin(), taken.end(), [](const auto& count) { return count.load() == 1; }));
    }
}

TEST_CASE("engine: an armed notification tells an event loop") {
    Pair pair("shm");
    const auto queue = std::make_shared<CompletionQueue>();
    NotificationQueue& notes = pair.b.engine->notifications().own();
    for (uint64_t i = 0; i < 200; ++i) {
        REQUIRE(notes.arm(queue, i));
        static_cast<void>(post(pair.a, request(Kind::notify, 0, 0, 0, 5)));
        REQUIRE(eventually([&] { return !queue->empty(); })); // only the progress thread polls
        CHECK(queue->drain() == std::vector<uint64_t>{i});
        CHECK_FALSE(notes.arm(queue, 99)); // a notification is here now
        CHECK(notification(pair.b).value == 5);
    }
}

TEST_CASE("engine: waiting for a completion queue, behind another caller") {
    Pair pair("shm");
    const Reach reach = pair.reach(1 << 20);
    std::atomic<bool> over{false};
    std::jthread first([&] { pair.a.engine->wait([&] { return over.load(); }, soon(), 0); });
    const auto queue = std::make_shared<CompletionQueue>();
    for (uint64_t i = 0; i < 300; ++i) {
        Posted posted = post(pair.a, reach.route, request(Kind::read, 0, 0, i % 2 == 0 ? 8 : 1 << 20));
        if (posted.op->arm(queue, i)) {
            REQUIRE(pair.a.engine->wait([&] { return !queue->empty(); }, soon(), 0));
            CHECK(queue->drain() == std::vector<uint64_t>{i});
        }
    }
    over.store(true);
    pair.a.engine->wake_waiters();
}

TEST_CASE("engine: closing wakes everybody, and is done once") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const Reach reach = pair.reach(64);
        std::atomic<int> returned{0};
        std::vector<std::jthread> waiting;
        for (int t = 0; t < 3; ++t) {
            waiting.emplace_back([&] {
                CHECK_FALSE(pair.a.engine->pop_notification(0, 0, 0, true).has_value());
                returned.fetch_add(1);
            });
        }
        Posted recv = post(pair.a, message(Kind::recv, reach.local, 64));
        const OpRef own = pair.a.engine->operations().create(0);
        CHECK(pair.a.engine->close(soon()));
        CHECK(pair.a.engine->close(soon()));
        waiting.clear();
        CHECK(returned.load() == 3);
        CHECK(recv.op->status() == Status::closed);
        CHECK(own->status() == Status::closed);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 8)).status == Status::closed);
        CHECK_THROWS_AS(pair.a.engine->add_endpoint(provider, pair.a.peer->id()), NativeError);
        CHECK(pair.a.engine->revoke({5, 1}, soon()));
        pair.a.engine->drop_peer(pair.a.peer->id(), {Status::closed, Reason::user});
        CHECK(eventually([&] { return !pair.b.lane->state().ok(); }));
    }
}

TEST_CASE("engine: closed and destroyed while devices still copy") {
    for (const Path& path : every_path()) {
        if (path.local == kHostDevice && path.remote == kHostDevice) {
            continue;
        }
        CAPTURE(path.name);
        auto pair = std::make_unique<Pair>(path.provider);
        Reach reach = pair->reach(2 << 20, path.local, path.remote, path.mapped);
        pair->a.sim->delay(0, 0, 1);
        pair->b.sim->delay(0, 0, 1);
        std::vector<Posted> ops;
        for (int i = 0; i < 4; ++i) {
            ops.push_back(post(pair->a, reach.route, request(i % 2 == 0 ? Kind::write : Kind::read, 0, 0, 2 << 20)));
        }
        if (path.remote != kHostDevice) {
            ops.push_back(post(pair->a, reach.route, request(Kind::fetch_add, 0, 0, 8)));
            REQUIRE(eventually([&] { return reach.remote->pins() != 0; }));
        }
        static_cast<void>(pair->a.engine->close(now_ns() + kMillisecond));
        static_cast<void>(pair->b.engine->close(now_ns() + kMillisecond));
        for (Posted& op : ops) {
            CHECK(op.op->done());
        }
        ops.clear();
        // Everything that Python would hold is dropped while the copies still run.
        std::weak_ptr<Region> local = reach.local;
        reach = {};
        pair->a.lane.reset();
        pair->b.lane.reset();
        struct Forget {
            std::shared_ptr<accel::SimDriver> a, b;
        } keep{pair->a.sim, pair->b.sim};
        pair.reset();
        CHECK(local.expired());
    }
}

TEST_CASE("engine: a lane closed before it was connected, or connected to nonsense") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Side a;
        Side b;
        introduce(a, b);
        const int before = accel::test::open_descriptors();
        {
            const auto lane = a.engine->add_endpoint(provider, a.peer->id());
            CHECK_THROWS_AS(lane->connect({"", {}}), NativeError);
            CHECK_THROWS_AS(lane->connect({"", {-1}}), NativeError);
            CHECK_THROWS_AS(lane->connect({"", {}}), NativeError);
            Request request;
            request.kind = Kind::notify;
            request.notify = 1;
            CHECK(a.engine->post(*lane, request, true).what == Posted::What::failed);
            if (provider == "shm") {
                CHECK_THROWS_AS(lane->connect({"", {a.engine->presence().page_fd()}}), NativeError); // not a ring
                const auto other = b.engine->add_endpoint(provider, b.peer->id());
                CHECK_NOTHROW(lane->connect(other->address())); // connecting may be tried again
                CHECK_THROWS_AS(lane->connect(other->address()), NativeError);
                CHECK(lane->address().fds.size() == 1);
                b.engine->close_endpoint(other, {Status::closed, Reason::lane_closed});
            }
            a.engine->close_endpoint(lane, {Status::closed, Reason::lane_closed});
            const Sockets sockets = connected_sockets();
            CHECK_THROWS_AS(lane->connect({"", {sockets.a}}), NativeError);
            ::close(sockets.a);
            ::close(sockets.b);
        }
        // Nobody waits for anything: the progress threads must find it by themselves.
        CHECK(eventually([&] { return accel::test::open_descriptors() == before; }));
        a.close();
        b.close();
    }
}

TEST_CASE("engine: nothing is left of a hundred lanes") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Side a;
        Side b;
        const int before = accel::test::open_descriptors();
        for (int i = 0; i < 100; ++i) {
            introduce(a, b); // a side that loses a lane loses the peer
            connect(a, b, provider);
            Request notify;
            notify.kind = Kind::notify;
            notify.notify = i;
            CHECK(a.wait(a.engine->post(*a.lane, notify, false)) == kOk);
            CHECK(notification(b).value == static_cast<uint32_t>(i));
            a.engine->close_endpoint(a.lane, {Status::closed, Reason::lane_closed});
            b.engine->close_endpoint(b.lane, {Status::closed, Reason::lane_closed});
            a.engine->drop_peer(a.peer->id(), {Status::closed, Reason::user});
            b.engine->drop_peer(b.peer->id(), {Status::closed, Reason::user});
            a.engine->presence().close_doorbell(a.doorbell);
            b.engine->presence().close_doorbell(b.doorbell);
            a.lane.reset();
            b.lane.reset();
            a.peer.reset();
            b.peer.reset();
        }
        // Nobody waits for anything: the progress threads must find it by themselves.
        CHECK(eventually([&] { return accel::test::open_descriptors() == before; }));
        CHECK(a.engine->statistics().at("operations_posted") == 100);
        a.close();
        b.close();
    }
}

TEST_CASE("engine: a forked child that lets go of it leaves the parent's lanes alone") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const Reach reach = pair.reach(64);
        REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, 64)) == kOk);
        const int status = accel::test::in_child([&] {
            pair.a.engine->abandon();
            pair.a.engine->close_endpoint(pair.a.lane, {Status::closed, Reason::lane_closed});
            pair.a.engine->drop_peer(pair.a.peer->id(), {Status::closed, Reason::user});
            static_cast<void>(pair.a.engine->revoke(reach.share, 0));
            static_cast<void>(pair.a.engine->close(0));
            pair.a.lane.reset();
            pair.a.engine.reset();
        });
        CHECK(status == 0);
        CHECK(run(pair.a, reach.route, request(Kind::read, 0, 0, 64)) == kOk);
        CHECK(pair.a.lane->state().ok());
        CHECK(pair.b.lane->state().ok());
    }
}

TEST_CASE("engine: a peer on another host that falls silent is lost by its heartbeat") {
    EngineOptions options;
    options.heartbeat_ns = 3600 * kSecond; // it passes on a clock of the test's own
    Side a(0, options);
    Side b(0, options);
    a.peer = a.engine->add_peer(-1, -1);
    b.peer = b.engine->add_peer(-1, -1);
    connect(a, b, "tcp");
    uint64_t now = now_ns();
    // This lasts longer than a heartbeat, and pings alone keep the peer alive.
    for (int i = 0; i < 6; ++i) {
        now += options.heartbeat_ns / 2;
        beat(a, b, now);
        beat(b, a, now);
        REQUIRE(a.lane->state().ok());
        REQUIRE(b.lane->state().ok());
    }
    tick(a, 1); // a clock value that was read long before
    tick(a, now);
    REQUIRE(a.lane->state().ok());
    {
        const Stopped stopped(b);
        const OpRef op = post(a, request(Kind::notify, 0, 0, 0, 1)).op;
        tick(a, now + options.heartbeat_ns);
        CHECK_FALSE(op->done());
        tick(a, now + options.heartbeat_ns + 1);
        CHECK(a.wait(op) == Outcome{Status::peer_lost, Reason::heartbeat});
        CHECK(a.engine->events()->drain() == std::vector<uint64_t>{static_cast<uint64_t>(a.peer->id())});
    }
    a.close();
    b.close();
}

} // namespace test_engine
