// Tests when and in what pieces a p2p lane issues the copies that it holds back.
#include "base/clock.hpp"
#include "provider/p2p/copy_queue.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace test_copy_queue {

using namespace zerohop;
using namespace zerohop::p2p;

namespace {

constexpr uint64_t kStart = 1000 * kSecond;
constexpr uint64_t kLong = kMillisecond;

class Switch final : public accel::Event {
public:
    [[nodiscard]] accel::EventState query() const override {
        return ended ? accel::EventState::done : accel::EventState::pending;
    }
    Outcome outcome() const override { return {}; }
    bool ended = false;
};

// Records the number of segments of each command, and ends a command when told to.
class Recorder final : public accel::Stream {
public:
    std::shared_ptr<accel::Event> copy(std::span<const accel::CopySegment> segments,
                                       std::span<const accel::Word> /*then*/) override {
        for (const accel::CopySegment& segment : segments) {
            addresses.push_back(segment.dst);
        }
        commands.push_back(segments.size());
        events.push_back(std::make_shared<Switch>());
        return events.back();
    }
    std::shared_ptr<accel::Event> copy_pages(const accel::PageCopy& /*pages*/,
                                             std::span<const accel::Word> /*then*/) override {
        return nullptr;
    }
    [[nodiscard]] bool gathers() const override { return gathering; }
    std::shared_ptr<accel::Event> write32(uint64_t /*address*/, uint32_t /*value*/) override { return nullptr; }
    std::shared_ptr<accel::Event> wait32(uint64_t /*address*/, uint32_t /*value*/) override { return nullptr; }
    std::shared_ptr<accel::Event> record() override { return nullptr; }
    Outcome follow(uint64_t /*native_stream*/) override { return {}; }

    bool gathering = true;
    std::vector<size_t> commands;
    std::vector<uint64_t> addresses; // destinations of all segments, in their order
    std::vector<std::shared_ptr<Switch>> events;
};

struct Queue {
    Queue() {
        auto made = std::make_unique<Recorder>();
        stream = made.get();
        queue = std::make_unique<CopyQueue>(std::move(made), 0, 0, 300.0);
    }
    // Posts a copy as a lane does.
    void post(uint64_t nbytes = 100, uint64_t now = kStart) {
        PeerCopy copy;
        copy.nbytes = nbytes;
        const accel::CopySegment segment{++posted, 0, nbytes};
        if (queue->gathers(nbytes, now)) {
            queue->hold(std::move(copy), segment, now);
        } else {
            queue->issue();
            copy.event = stream->copy({&segment, 1}, {});
            queue->push(std::move(copy), now);
        }
    }
    void post_many(size_t count) {
        for (size_t i = 0; i < count; ++i) {
            post();
        }
    }
    [[nodiscard]] size_t reap() const {
        std::vector<PeerCopy> ended;
        queue->reap(ended, true);
        return ended.size();
    }

    Recorder* stream = nullptr;
    std::unique_ptr<CopyQueue> queue;
    uint64_t posted = 0;
};

using Sizes = std::vector<size_t>;

} // namespace

TEST_CASE("copy queue: the first is issued at once, those behind it as soon as somebody who waits looks") {
    Queue q;
    q.post_many(4);
    CHECK(q.stream->commands == Sizes{1});
    CHECK(q.queue->busy());
    CHECK(q.queue->due_ns() > kStart);
    q.queue->issue_when_due(kStart, false); // nobody waits, and a copy is under way
    CHECK(q.stream->commands == Sizes{1});
    q.queue->issue_when_due(kStart, true);
    CHECK(q.stream->commands == Sizes{1, 3});
    CHECK(q.queue->due_ns() == UINT64_MAX);
    // Two commands keep a device busy.
    q.post_many(2);
    q.queue->issue_when_due(kStart, true);
    CHECK(q.stream->commands == Sizes{1, 3});
    q.stream->events[0]->ended = true;
    CHECK(q.reap() == 1);
    q.queue->issue_when_due(kStart, true);
    CHECK(q.stream->commands == Sizes{1, 3, 2});
    q.stream->events[1]->ended = q.stream->events[2]->ended = true;
    CHECK(q.reap() == 5);
    CHECK_FALSE(q.queue->busy());
    CHECK(q.queue->gathered() == 5);
    CHECK(q.stream->addresses == std::vector<uint64_t>{1, 2, 3, 4, 5, 6});
    q.post(); // nothing is under way
    CHECK(q.stream->commands.back() == 1);
}

TEST_CASE("copy queue: whoever posts many has them issued in large pieces, with nobody looking") {
    Queue q;
    q.post_many(200);
    CHECK(q.stream->commands == Sizes{1, 64, 64, 64});
    for (const auto& event : q.stream->events) {
        event->ended = true;
    }
    CHECK(q.reap() == 193); // held copies are not counted
    CHECK(q.queue->size() == 7);
    q.queue->issue_when_due(kStart, false); // nothing else is under way
    CHECK(q.stream->commands.back() == 7);
    q.stream->events.back()->ended = true;
    CHECK(q.reap() == 7);
    CHECK_FALSE(q.queue->busy());
}

TEST_CASE("copy queue: what nobody waits for is held for a while, and no longer") {
    Queue q;
    q.post_many(3);
    const uint64_t due = q.queue->due_ns();
    REQUIRE(due < kStart + kLong);
    q.queue->issue_when_due(due - 1, false);
    CHECK(q.stream->commands == Sizes{1});
    q.queue->issue_when_due(due, false);
    CHECK(q.stream->commands == Sizes{1, 2});
}

TEST_CASE("copy queue: large ones go at once, behind what is held; no stream has to gather") {
    Queue q;
    q.post_many(3);
    q.post(1 << 20);
    CHECK(q.stream->commands == Sizes{1, 2, 1});
    Queue plain;
    plain.stream->gathering = false;
    plain.post_many(3);
    CHECK(plain.stream->commands == Sizes{1, 1, 1});
    CHECK(plain.queue->gathered() == 0);
}

TEST_CASE("copy queue: what was issued so long ago that it is over, as far as can be told, holds up nothing") {
    Queue q;
    q.post();
    q.post(100, kStart + kLong); // nobody has reaped since
    CHECK(q.stream->commands == Sizes{1, 1});
    q.post(100, kStart + kLong);
    CHECK(q.stream->commands == Sizes{1, 1});
    q.post(100, kStart + 3 * kLong); // held copies keep their place
    q.queue->issue_when_due(kStart + 3 * kLong, false);
    CHECK(q.stream->commands == Sizes{1, 1, 2});
}

TEST_CASE("copy queue: only who waited learns how long copies take") {
    constexpr uint64_t kLarge = 64ULL << 20;
    Queue q;
    const auto expected = [&] {
        q.stream->events.clear();
        const uint64_t now = now_ns();
        q.post(kLarge, now);
        const uint64_t until = q.queue->expected_ns() - now;
        q.stream->events.back()->ended = true;
        (void)q.reap();
        return until;
    };
    const uint64_t at_first = expected();
    for (int round = 0; round < 30; ++round) {
        for (int i = 0; i < 4; ++i) {
            q.post(kLarge, now_ns());
        }
        for (const auto& event : q.stream->events) {
            event->ended = true;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200)); // the thread is busy with something else
        CHECK(q.reap() == 4);
    }
    CHECK(expected() > at_first / 2);
}

TEST_CASE("copy queue: the end of a copy is expected from when the one before it ended, whatever was thought before") {
    constexpr uint64_t kLarge = 3ULL << 20; // too large to measure a rate from
    Queue q;
    for (int i = 0; i < 1000; ++i) {
        q.post(kLarge, now_ns());
    }
    for (int i = 0; i < 999; ++i) {
        q.stream->events[static_cast<size_t>(i)]->ended = true;
    }
    CHECK(q.reap() == 999);
    CHECK(q.queue->expected_ns() < now_ns() + kMillisecond);
}

TEST_CASE("copy queue: what is held when a lane closes is never issued") {
    Queue q;
    q.post_many(5);
    std::vector<PeerCopy> dropped;
    q.queue->drop_held(dropped);
    CHECK(dropped.size() == 4);
    CHECK(q.queue->size() == 1);
    CHECK(q.queue->due_ns() == UINT64_MAX);
    q.queue->issue_when_due(kStart + kLong, true);
    CHECK(q.stream->commands == Sizes{1});
    q.stream->events[0]->ended = true;
    CHECK(q.reap() == 1);
    CHECK_FALSE(q.queue->busy());
}

} // namespace test_copy_queue
