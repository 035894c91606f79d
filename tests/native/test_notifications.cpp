// Tests the notification queues of one Context: each takes those of its own peer, and those without a queue are
// dropped.
#include "raw_peer.hpp"

#include <memory>
#include <set>
#include <thread>

namespace test_notifications {

using namespace zerohop;
using namespace zerohop::test;

namespace {

std::optional<Notification> taken(const Side& side, uint16_t queue) {
    return side.engine->pop_notification(queue, 0, 0, false);
}

// Takes the next notification, within the tests' patience.
Notification next(const Side& side, uint16_t queue) {
    std::optional<Notification> note =
        side.engine->pop_notification(queue, soon(), side.engine->options().spin_ns, true);
    REQUIRE(note.has_value());
    return *note;
}

Request announcement(uint16_t queue, uint32_t value) {
    Request told;
    told.kind = Kind::notify;
    told.notify = notify_of(queue, value);
    return told;
}

Notification of(int peer, uint32_t value) {
    return {peer, value, 0, {}, {}};
}

} // namespace

TEST_CASE("notification: a value and a queue make one number, and come apart again") {
    for (const uint16_t queue : {0, 1, 255, 256, 0x7FFF, 0x8000, 0xFFFF}) {
        for (const uint32_t value : {0U, 1U, 0x7FFF'FFFFU, 0x8000'0000U, 0xFFFF'FFFFU}) {
            const int64_t notify = notify_of(queue, value);
            CHECK(notify >= 0); // a value that is not negative means that there is one
            CHECK(queue_of(notify) == queue);
            CHECK(value_of(notify) == value);
            FrameHeader header;
            header.announce(notify);
            CHECK(header.has(kNotify));
            CHECK(header.announced() == notify);
        }
    }
}

TEST_CASE("notification queues: each takes its own, over every path") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(4096, path.local, path.remote, path.mapped);
        const uint16_t first = pair.b.engine->open_queue();
        const uint16_t second = pair.b.engine->open_queue();
        CHECK(first != second);
        for (const uint16_t queue : {first, second}) {
            pair.b.engine->take_from(queue, pair.b.peer->id());
        }
        uint32_t value = 0xFFFF'FF00;
        for (const uint16_t queue : {first, uint16_t{0}, second, first}) {
            REQUIRE(run(pair.a, reach.route, request(Kind::write, 0, 0, 64, notify_of(queue, ++value))) == kOk);
        }
        REQUIRE(pair.a.wait(post(pair.a, announcement(second, 7))) == kOk);
        CHECK(next(pair.b, second).value == value - 1);
        CHECK(next(pair.b, second).value == 7);
        CHECK(next(pair.b, first).value == value - 3);
        const Notification last = next(pair.b, first);
        CHECK(last.value == value);
        CHECK(last.nbytes == 64);
        CHECK(last.peer == pair.b.peer->id());
        CHECK(next(pair.b, 0).value == value - 2);
        for (const uint16_t queue : {uint16_t{0}, first, second}) {
            CHECK_FALSE(taken(pair.b, queue).has_value());
        }
    }
}

TEST_CASE("notification queues: what is for none is dropped, and costs the peer no credit") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const uint16_t closed = pair.b.engine->open_queue();
        pair.b.engine->take_from(closed, pair.b.peer->id());
        REQUIRE(pair.a.wait(post(pair.a, announcement(closed, 1))) == kOk);
        CHECK(next(pair.b, closed).value == 1);
        pair.b.engine->close_queue(closed);
        pair.b.engine->close_queue(closed);
        const uint16_t strangers = pair.b.engine->open_queue();
        pair.b.engine->take_from(strangers, pair.b.peer->id() + 1);
        const uint16_t nobodys = pair.b.engine->open_queue();
        for (uint32_t i = 0; i < 3 * framed::kCredits; ++i) {
            const uint16_t queue = i % 4 == 0 ? closed : i % 4 == 1 ? strangers : i % 4 == 2 ? nobodys : 0xFFFF;
            REQUIRE(pair.a.wait(post(pair.a, announcement(queue, i))) == kOk);
        }
        REQUIRE(pair.a.wait(post(pair.a, announcement(0, 2))) == kOk);
        CHECK(next(pair.b, 0).value == 2);
        for (const uint16_t queue : {closed, strangers, nobodys, uint16_t{0xFFFF}}) {
            CHECK_FALSE(taken(pair.b, queue).has_value());
        }
    }
}

TEST_CASE("notification queues: credit of what was in one that is closed comes back") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        for (int round = 0; round < 3; ++round) {
            const uint16_t queue = pair.b.engine->open_queue();
            pair.b.engine->take_from(queue, pair.b.peer->id());
            for (uint32_t i = 0; i < framed::kCredits; ++i) { // as many as a lane may have in flight
                REQUIRE(pair.a.wait(post(pair.a, announcement(queue, i))) == kOk);
            }
            pair.b.engine->close_queue(queue);
        }
    }
}

TEST_CASE("notification queues: one that nobody reads holds up no other, and gets no more than it may have") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const uint16_t full = pair.b.engine->open_queue();
        const uint16_t other = pair.b.engine->open_queue();
        for (const uint16_t queue : {full, other}) {
            pair.b.engine->take_from(queue, pair.b.peer->id());
        }
        for (uint32_t i = 0; i < framed::kCredits; ++i) {
            REQUIRE(pair.a.wait(post(pair.a, announcement(full, i))) == kOk);
        }
        CHECK(post(pair.a, announcement(full, 0), true).outcome == Outcome{Status::would_block, Reason::no_credit});
        for (uint32_t i = 0; i < 3 * framed::kCredits; ++i) { // more than one queue may have waiting
            for (const uint16_t queue : {uint16_t{0}, other}) {
                REQUIRE(pair.a.wait(post(pair.a, announcement(queue, i))) == kOk);
                REQUIRE(next(pair.b, queue).value == i);
            }
        }
        for (uint32_t i = 0; i < framed::kCredits; ++i) {
            REQUIRE(next(pair.b, full).value == i);
        }
        REQUIRE(pair.a.wait(post(pair.a, announcement(full, 7))) == kOk);
        CHECK(next(pair.b, full).value == 7);
    }
}

TEST_CASE("notification queues: nobody fills one without end, however many lanes bring something") {
    const Side side;
    for (uint32_t i = 0; i < NotificationQueue::kMost + 10; ++i) {
        side.engine->notify(0, of(3, i));
    }
    size_t found = 0;
    while (taken(side, 0).has_value()) {
        ++found;
    }
    CHECK(found == NotificationQueue::kMost);
}

TEST_CASE("notification queues: the own one takes anybody's, and is not closed, ended or given to one peer") {
    const Side side;
    side.engine->take_from(0, 5);
    side.engine->end_queue(0);
    side.engine->close_queue(0);
    side.engine->notify(0, of(3, 9));
    CHECK(taken(side, 0).value().value == 9);
}

TEST_CASE("notification queues: one that has ended gives what it has, then nothing") {
    const Side side;
    const uint16_t queue = side.engine->open_queue();
    side.engine->take_from(queue, 3);
    side.engine->notify(queue, of(3, 1));
    side.engine->notify(queue, of(3, 2));
    std::jthread waits([&] { // it waits for the third one
        for (const uint32_t value : {1U, 2U}) {
            CHECK(next(side, queue).value == value);
        }
        CHECK_FALSE(side.engine->pop_notification(queue, soon(), 0, true).has_value());
    });
    CHECK(eventually([&] { return side.engine->notifications().of(queue)->empty(); }));
    side.engine->end_queue(queue);
    waits.join();
    side.engine->notify(queue, of(3, 4));
    side.engine->end_queue(queue);
    side.engine->close_queue(queue);
    CHECK_FALSE(taken(side, queue).has_value());
    side.engine->end_queue(queue);
    CHECK_FALSE(side.engine->pop_notification(queue, soon(), 0, true).has_value()); // returns at once
}

TEST_CASE("notification queues: whoever waits while one comes and the queue ends has it") {
    Pair pair("shm");
    int lost = 0;
    for (int round = 0; round < 3000; ++round) {
        const uint16_t queue = pair.b.engine->open_queue();
        pair.b.engine->take_from(queue, 1);
        std::thread ends([&] {
            pair.b.engine->notify(queue, of(1, 7));
            pair.b.engine->end_queue(queue);
        });
        lost += pair.b.engine->pop_notification(queue, soon(), 0, true).has_value() ? 0 : 1;
        ends.join();
        pair.b.engine->close_queue(queue);
    }
    CHECK(lost == 0);
}

TEST_CASE("notification queues: who asked to be told hears of the end, and of nobody else's arrivals") {
    const Side side;
    const auto told = std::make_shared<CompletionQueue>();
    const uint16_t queue = side.engine->open_queue();
    const uint16_t other = side.engine->open_queue();
    for (const uint16_t each : {queue, other}) {
        side.engine->take_from(each, 3);
    }
    const auto mine = side.engine->notifications().of(queue);
    REQUIRE(mine->arm(told, 7));
    side.engine->notify(0, of(3, 1));
    side.engine->notify(other, of(3, 1));
    side.engine->notify(queue, of(4, 1));
    CHECK(told->drain().empty());
    side.engine->notify(queue, of(3, 1));
    CHECK(told->drain() == std::vector<uint64_t>{7});
    CHECK_FALSE(mine->arm(told, 8)); // a notification is there
    REQUIRE(taken(side, queue).has_value());
    REQUIRE(mine->arm(told, 9));
    side.engine->end_queue(queue);
    CHECK(told->drain() == std::vector<uint64_t>{9});
    CHECK_FALSE(mine->arm(told, 10)); // no notification will come
}

TEST_CASE("notification queues: as many as numbers, each used again late") {
    const Side side;
    Engine& engine = *side.engine;
    std::set<uint16_t> numbers;
    for (int i = 0; i < UINT16_MAX; ++i) {
        numbers.insert(engine.open_queue());
    }
    CHECK(numbers.size() == UINT16_MAX);
    CHECK_FALSE(numbers.contains(0));
    CHECK_THROWS_AS((void)engine.open_queue(), NativeError);
    for (const uint16_t number : {500, 7, 60'000}) {
        engine.close_queue(number);
    }
    std::set<uint16_t> again;
    for (int i = 0; i < 3; ++i) {
        again.insert(engine.open_queue());
    }
    CHECK(again == std::set<uint16_t>{7, 500, 60'000});
    CHECK_THROWS_AS((void)engine.open_queue(), NativeError);
    for (const uint16_t number : numbers) {
        engine.close_queue(number);
    }
    // A queue that is opened later does not get a late notification for one that is gone.
    const uint16_t gone = engine.open_queue();
    engine.close_queue(gone);
    CHECK(engine.open_queue() != gone);
}

TEST_CASE("notification queues: a raw peer names any queue") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Target target(provider);
        const uint16_t queue = target.side.engine->open_queue();
        target.side.engine->take_from(queue, target.side.peer->id());
        FrameHeader write = target.header(FrameKind::write, 0, 8, kLast);
        for (const uint16_t named : {uint16_t{0xFFFF}, uint16_t{0x0100}, queue}) {
            write.announce(notify_of(named, named));
            REQUIRE(target.peer.send(write, {}, Bytes(8, 1)));
            CHECK(target.peer.answer(7) == kOk);
        }
        CHECK(next(target.side, queue).value == queue);
        CHECK_FALSE(taken(target.side, 0).has_value());
        // An aborted write gives its reason in the place of the notification, and announces nothing.
        write.announce(notify_of(queue, 3));
        write.flags |= kAborted;
        REQUIRE(target.peer.send(write, {}, Bytes(8, 1)));
        (void)target.peer.receive(FrameKind::ack);
        CHECK_FALSE(taken(target.side, queue).has_value());
    }
}

namespace {

constexpr Outcome kEnd{Status::closed, Reason::owner_closed};
constexpr size_t kBytes = 4 << 20;

// Ends a group while a write of it and one of another group are in flight. Returns false, and shows nothing, if the
// first had moved its bytes before: the pollers are stopped, but not the threads beside them that carry flows.
bool ends_in_flight(Pair& pair, const Reach& reach, OperationGroup& group) {
    OperationGroup others;
    Posted mine;
    Posted theirs;
    {
        const Stopped peer(pair.b);
        const Stopped self(pair.a);
        Request write = request(Kind::write, 0, 0, kBytes);
        write.group = &group;
        mine = post(pair.a, reach.route, write);
        write.group = &others;
        theirs = post(pair.a, reach.route, write);
        REQUIRE(mine.what == Posted::What::posted);
        REQUIRE(theirs.what == Posted::What::posted);
        pair.a.engine->end_group(group, kEnd);
        CHECK(mine.op->done());
        CHECK((!theirs.op->done() || theirs.op->status() == Status::ok));
    }
    CHECK(pair.a.wait(theirs) == kOk);
    const Outcome ended{mine.op->status(), mine.op->reason()};
    CHECK((ended == kEnd || ended == kOk));
    return ended == kEnd;
}

} // namespace

TEST_CASE("operation group: of an engine, in flight and posted later, over every path") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(kBytes, path.local, path.remote, path.mapped);
        const bool has_flows = path.provider.ends_with("flows");
        auto group = std::make_unique<OperationGroup>();
        while (!ends_in_flight(pair, reach, *group)) {
            REQUIRE(has_flows);
            group = std::make_unique<OperationGroup>();
        }
        Request late = request(Kind::write, 0, 0, kBytes);
        late.group = group.get();
        CHECK(run(pair.a, reach.route, late) == kEnd);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 64)) == kOk);
        CHECK(eventually([&] { return reach.local->pins() == 0; }));
    }
}

} // namespace test_notifications
