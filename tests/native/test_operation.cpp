// Tests operation slots: ended exactly once by the first caller; queried, armed and dropped at any moment.
#include "engine_fixture.hpp"
#include "operation/operation.hpp"

#include <barrier>
#include <poll.h>
#include <set>

namespace test_operation {

using namespace zerohop;
using namespace zerohop::test;

namespace {

bool readable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
}

struct Slab {
    std::atomic<int> ended{0};
    OperationSlab slab{[this] { ended.fetch_add(1); }};
};

} // namespace

TEST_CASE("operation: one end counts") {
    Slab s;
    OpRef op = s.slab.create(0);
    CHECK_FALSE(op->done());
    CHECK(s.slab.pending() == 1);
    CHECK(op->finish({}, 10, 20));
    CHECK(op->done());
    CHECK(op->bytes_done() == 10);
    CHECK(op->value() == 20);
    CHECK(op->finished_ns() >= op->started_ns());
    CHECK(s.slab.pending() == 0);
    CHECK_FALSE(op->finish({Status::peer_lost, Reason::process_died}, 1, 2));
    CHECK(op->status() == Status::ok);
    CHECK(op->bytes_done() == 10);
    CHECK(s.slab.pending() == 0);
    CHECK(s.ended.load() == 1);
}

TEST_CASE("operation: a late completion finds its own slot, not somebody else's") {
    Slab s;
    OpRef mine = s.slab.create(0);
    OpRef of_lane = mine;
    Operation* slot = &*mine;
    CHECK(mine->finish(kDeadline));
    mine.reset();
    std::vector<OpRef> others;
    for (int i = 0; i < 3000; ++i) { // more than a chunk
        others.push_back(s.slab.create(0));
        REQUIRE(&*others.back() != slot);
    }
    CHECK_FALSE(of_lane->finish({}, 5));
    CHECK(of_lane->status() == Status::deadline);
    of_lane.reset();
    const OpRef again = s.slab.create(0);
    CHECK(&*again == slot);
    CHECK_FALSE(again->done());
    CHECK(again->bytes_done() == 0);
    CHECK(s.slab.pending() == 3001);
}

TEST_CASE("operation: dropped while pending, it does not count as pending for ever") {
    Slab s;
    s.slab.create(1).reset();
    CHECK(s.slab.pending() == 0);
    CHECK(s.slab.expire(2) == UINT64_MAX);
    CHECK(s.ended.load() == 1);
}

TEST_CASE("operation: deadlines") {
    Slab s;
    CHECK(s.slab.earliest_deadline() == UINT64_MAX);
    const OpRef never = s.slab.create(0);
    const OpRef later = s.slab.create(2000);
    const OpRef sooner = s.slab.create(1000);
    OpRef ended = s.slab.create(500);
    CHECK(s.slab.earliest_deadline() == 500);
    ended->finish({});
    CHECK(s.slab.expire(400) == 500); // a lower bound is enough
    CHECK(s.slab.expire(999) == 1000);
    CHECK_FALSE(sooner->done());
    CHECK(s.slab.expire(1000) == 2000);
    CHECK(sooner->status() == Status::deadline);
    CHECK_FALSE(later->done());
    CHECK(s.slab.expire(UINT64_MAX - 1) == UINT64_MAX);
    CHECK(later->status() == Status::deadline);
    CHECK_FALSE(never->done());
    CHECK(ended->status() == Status::ok);
    s.slab.finish_all({Status::closed, Reason::context_closed});
    CHECK(never->status() == Status::closed);
    CHECK(never->reason() == Reason::context_closed);
    CHECK(s.slab.pending() == 0);
}

TEST_CASE("operation: 1 Mi in flight are refused with a name, and all come back") {
    Slab s;
    std::vector<OpRef> all;
    const auto fill = [&] {
        for (;;) {
            all.push_back(s.slab.create(0));
        }
    };
    CHECK_THROWS_AS(fill(), NativeError);
    CHECK(all.size() == 1024 * 1024);
    all.pop_back();
    all.push_back(s.slab.create(0));
    all.clear();
    CHECK(s.slab.pending() == 0);
    CHECK_FALSE(s.slab.create(0)->done());
}

TEST_CASE("operation: armed") {
    Slab s;
    const auto queue = std::make_shared<CompletionQueue>();
    const OpRef op = s.slab.create(0);
    CHECK(op->arm(queue, 7));
    CHECK(queue->drain().empty());
    CHECK_FALSE(readable(queue->fd()));
    op->finish({});
    CHECK(readable(queue->fd()));
    CHECK(queue->drain() == std::vector<uint64_t>{7});
    CHECK_FALSE(readable(queue->fd()));
    CHECK_FALSE(op->arm(queue, 8));
    CHECK(queue->empty());
    const OpRef other = s.slab.create(0);
    CHECK(other->arm(queue, 9));
    queue->close();
    queue->close();
    CHECK(queue->fd() == -1);
    other->finish({}); // a push into a closed queue is dropped
    CHECK(queue->drain().empty());
}

TEST_CASE("operation: everybody who asked is told, also twice in one queue") {
    Slab s;
    const auto one = std::make_shared<CompletionQueue>();
    const auto other = std::make_shared<CompletionQueue>();
    const OpRef op = s.slab.create(0);
    CHECK(op->arm(one, 1));
    CHECK(op->arm(other, 2));
    CHECK(op->arm(one, 3));
    op->finish({});
    CHECK(one->drain() == std::vector<uint64_t>{1, 3});
    CHECK(other->drain() == std::vector<uint64_t>{2});
}

TEST_CASE("operation: nobody is told who does not want to know any more") {
    Slab s;
    const auto one = std::make_shared<CompletionQueue>();
    const auto gone = std::make_shared<CompletionQueue>();
    const OpRef op = s.slab.create(0);
    for (uint64_t token = 1; token <= 3; ++token) {
        CHECK(op->arm(one, token));
    }
    CHECK(op->arm(gone, 1));
    gone->close();
    op->disarm(*one, 2);
    op->disarm(*one, 7); // was never armed
    CHECK(op->arm(one, 4));
    CHECK(gone.use_count() == 1); // a closed queue is dropped at the next arm()
    op->finish({});
    op->disarm(*one, 1); // too late
    CHECK(one->drain() == std::vector<uint64_t>{1, 3, 4});
}

TEST_CASE("operation: how many somebody is to be told of") {
    Slab s;
    const auto queue = std::make_shared<CompletionQueue>();
    const OpRef op = s.slab.create(0);
    const OpRef other = s.slab.create(0);
    CHECK(s.slab.awaited() == 0);
    CHECK(op->arm(queue, 1));
    CHECK(op->arm(queue, 2));
    CHECK(other->arm(queue, 3));
    CHECK(s.slab.awaited() == 2);
    op->disarm(*queue, 1);
    CHECK(s.slab.awaited() == 2);
    op->disarm(*queue, 2);
    op->disarm(*queue, 2);
    CHECK(s.slab.awaited() == 1);
    other->finish({});
    other->disarm(*queue, 3);
    CHECK(s.slab.awaited() == 0);
    op->finish({});
    CHECK(s.slab.awaited() == 0);
}

TEST_CASE("operation: its token is in the queue before those who wait are woken") {
    // Woken threads look at the queue, and would go back to sleep.
    const auto queue = std::make_shared<CompletionQueue>();
    bool there = false;
    OperationSlab slab([&] { there = !queue->empty(); });
    const OpRef op = slab.create(0);
    REQUIRE(op->arm(queue, 1));
    op->finish({});
    CHECK(there);
}

TEST_CASE("operation: finish, arm, drop and deadline race for one slot") {
    Slab s;
    const auto queue = std::make_shared<CompletionQueue>();
    constexpr int kRounds = 20'000;
    std::atomic<int> finished{0};
    std::atomic<int> armed{0};
    OpRef shared[2];
    std::barrier round(4);
    const auto each_round = [&](const std::function<void(OpRef&)>& act) {
        for (int i = 0; i < kRounds; ++i) {
            round.arrive_and_wait();
            OpRef op = shared[i % 2];
            act(op);
            op.reset();
            round.arrive_and_wait();
        }
    };
    std::thread lane([&] { each_round([&](OpRef& op) { finished += op->finish({}, 1) ? 1 : 0; }); });
    std::thread canceller([&] { each_round([&](OpRef& op) { finished += op->finish(kCancelled) ? 1 : 0; }); });
    std::thread loop([&] { each_round([&](OpRef& op) { armed += op->arm(queue, 1) ? 1 : 0; }); });
    for (int i = 0; i < kRounds; ++i) {
        shared[i % 2] = s.slab.create(i % 3 == 0 ? 1 : 0);
        round.arrive_and_wait();
        if (i % 3 == 0) {
            s.slab.expire(2);
        }
        shared[(i + 1) % 2].reset();
        round.arrive_and_wait();
        REQUIRE(shared[i % 2]->done());
    }
    lane.join();
    canceller.join();
    loop.join();
    CHECK(s.slab.pending() == 0);
    CHECK(s.ended.load() == kRounds); // each ended exactly once, by any of the threads
    CHECK(finished.load() <= kRounds);
    CHECK(queue->drain().size() == static_cast<size_t>(armed.load()));
}

TEST_CASE("operation: many threads create, end and expire") {
    Slab s;
    std::atomic<bool> stop{false};
    std::thread clock([&] {
        while (!stop.load()) {
            s.slab.expire(1000);
        }
    });
    constexpr int kThreads = 3;
    constexpr int kEach = 20'000;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            std::vector<OpRef> held;
            for (int i = 0; i < kEach; ++i) {
                OpRef op = s.slab.create(i % 4 == 0 ? 500 : 0);
                if (i % 5 == t) {
                    held.push_back(op);
                }
                op->finish({}, 1);
                REQUIRE(op->done());
                REQUIRE((op->status() == Status::ok || (op->status() == Status::deadline && i % 4 == 0)));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    stop.store(true);
    clock.join();
    CHECK(s.slab.pending() == 0);
    CHECK(s.ended.load() == kThreads * kEach);
}

TEST_CASE("operation group: its operations end together, with the reason, and nobody else's") {
    Slab s;
    OperationGroup mine;
    OperationGroup others;
    std::vector<OpRef> ours;
    for (int i = 0; i < 1500; ++i) { // more than a chunk
        ours.push_back(s.slab.create(0));
        ours.back()->join(mine);
    }
    const OpRef theirs = s.slab.create(0);
    theirs->join(others);
    const OpRef nobodys = s.slab.create(0);
    CHECK(ours[7]->finish({}, 3));
    CHECK_FALSE(mine.ended());
    s.slab.finish_group(mine, {Status::peer_lost, Reason::peer_closed});
    CHECK(mine.ended());
    for (size_t i = 0; i < ours.size(); ++i) {
        REQUIRE(ours[i]->status() == (i == 7 ? Status::ok : Status::peer_lost));
        REQUIRE(ours[i]->reason() == (i == 7 ? Reason::none : Reason::peer_closed));
    }
    CHECK_FALSE(others.ended());
    CHECK_FALSE(theirs->done());
    CHECK_FALSE(nobodys->done());
    CHECK(s.slab.pending() == 2);
}

TEST_CASE("operation group: what joins it after its end ends with it, and the first end counts") {
    Slab s;
    OperationGroup group;
    s.slab.finish_group(group, {Status::closed, Reason::owner_closed});
    s.slab.finish_group(group, {Status::peer_lost, Reason::peer_closed});
    CHECK(group.outcome() == Outcome{Status::closed, Reason::owner_closed});
    const OpRef late = s.slab.create(0);
    CHECK_FALSE(late->done());
    late->join(group);
    CHECK(late->status() == Status::closed);
    CHECK(late->reason() == Reason::owner_closed);
    OpRef ended = s.slab.create(0);
    CHECK(ended->finish({}, 9));
    ended->join(group);
    CHECK(ended->status() == Status::ok);
    CHECK(ended->bytes_done() == 9);
}

TEST_CASE("operation group: a slot that is used again is in no group") {
    Slab s;
    OperationGroup group;
    OpRef first = s.slab.create(0);
    Operation* slot = &*first;
    first->join(group);
    first->finish({});
    first.reset();
    const OpRef next = s.slab.create(0);
    REQUIRE(&*next == slot);
    s.slab.finish_group(group, {Status::closed, Reason::owner_closed});
    CHECK_FALSE(next->done());
}

TEST_CASE("operation group: the end races with those that join") {
    for (int round = 0; round < 200; ++round) {
        Slab s;
        OperationGroup group;
        std::barrier start(3);
        std::vector<OpRef> joined[2];
        std::vector<std::jthread> threads;
        for (auto& mine : joined) {
            threads.emplace_back([&] {
                start.arrive_and_wait();
                for (int i = 0; i < 50; ++i) {
                    mine.push_back(s.slab.create(0));
                    mine.back()->join(group);
                }
            });
        }
        start.arrive_and_wait();
        s.slab.finish_group(group, {Status::closed, Reason::owner_closed});
        threads.clear();
        for (const auto& mine : joined) {
            for (const OpRef& op : mine) {
                REQUIRE(op->status() == Status::closed);
                REQUIRE(op->reason() == Reason::owner_closed);
            }
        }
        CHECK(s.slab.pending() == 0);
    }
}

TEST_CASE("peer: the first loss counts, with its own reason") {
    Peer peer(3, nullptr);
    CHECK(peer.state() == kOk);
    CHECK(peer.lose({Status::peer_lost, Reason::heartbeat}));
    CHECK_FALSE(peer.lose({Status::closed, Reason::user}));
    CHECK(peer.state() == Outcome{Status::peer_lost, Reason::heartbeat});
}

} // namespace test_operation
