// Tests the wake-up of an event loop, by tokens and, while it listens, by the messages themselves; nothing depends on
// it.
#include "engine/loop_bell.hpp"
#include "engine_fixture.hpp"

#include <poll.h>

namespace test_loop_bell {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Waits as a loop does; true if the descriptor became readable.
bool readable(const LoopBell& bell, int timeout_ms) {
    pollfd entry{bell.fd(), POLLIN, 0};
    return ::poll(&entry, 1, timeout_ms) == 1;
}

constexpr int kAtOnce = 0;
const int kSoon = static_cast<int>(patience(std::chrono::seconds(30)) / std::chrono::milliseconds(1));

struct Loop {
    explicit Loop(const Side& side)
        : engine(side.engine), queue(std::make_shared<CompletionQueue>()), bell(engine->poller(), queue) {}

    // Waits until one notification has been announced by its token, and takes it.
    [[nodiscard]] std::optional<Notification> await_notification() {
        for (const uint64_t limit = soon(); now_ns() < limit;) {
            if (!engine->notifications().own().arm(queue, 1)) {
                return engine->pop_notification(0, 0, 0, false);
            }
            bell.listen();
            if (readable(bell, kSoon)) {
                (void)bell.drain();
            }
            engine->notifications().own().disarm(*queue, 1);
        }
        return std::nullopt;
    }

    std::shared_ptr<Engine> engine;
    std::shared_ptr<CompletionQueue> queue;
    LoopBell bell;
};

} // namespace

TEST_CASE("loop bell: a token is heard whether it listens or not") {
    const Side side;
    Loop loop(side);
    for (const bool listens : {false, true}) {
        if (listens) {
            loop.bell.listen();
        }
        CHECK_FALSE(readable(loop.bell, kAtOnce));
        loop.queue->push(7);
        CHECK(readable(loop.bell, kAtOnce));
        CHECK(loop.bell.drain() == std::vector<uint64_t>{7});
        CHECK_FALSE(readable(loop.bell, kAtOnce));
    }
    side.close();
}

TEST_CASE("loop bell: notifications reach a loop on every lane") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        Loop loop(pair.b);
        for (uint32_t i = 0; i < 500; ++i) {
            Request note;
            note.kind = Kind::notify;
            note.notify = i;
            REQUIRE(pair.a.wait(post(pair.a, note)) == kOk);
            const std::optional<Notification> got = loop.await_notification();
            REQUIRE(got.has_value());
            CHECK(got->value == i);
        }
    }
}

TEST_CASE("loop bell: a loop that does not come holds nobody up") {
    Pair pair("shm");
    const Reach reach = pair.reach(1 << 20); // through the ring: b's poller must place it
    Loop busy(pair.b);
    for (int i = 0; i < 50; ++i) {
        busy.bell.listen();
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 1 << 20)) == kOk);
    }
}

TEST_CASE("loop bell: only the first message after listen() is the loop's") {
    Pair pair("shm");
    Loop loop(pair.b);
    loop.bell.listen();
    Request note;
    note.kind = Kind::notify;
    note.notify = 1;
    REQUIRE(pair.a.wait(post(pair.a, note)) == kOk);
    REQUIRE(eventually([&] { return !pair.b.engine->notifications().own().empty(); }));
    (void)loop.bell.drain();
    REQUIRE(pair.a.wait(post(pair.a, note)) == kOk);
    CHECK_FALSE(readable(loop.bell, 20));
}

TEST_CASE("loop bell: it may be closed while it listens, and before the engine or after") {
    Pair pair("shm");
    auto bell = std::make_unique<Loop>(pair.b);
    bell->bell.listen();
    bell->bell.close();
    CHECK(bell->bell.fd() == -1);
    bell.reset();
    Loop late(pair.b);
    late.bell.listen();
    pair.b.close();
    CHECK(late.bell.drain().empty());
}

} // namespace test_loop_bell
