// Tests the reaping of a lane's completions while another thread posts to it.
#ifdef ZEROHOP_VERBS

#include "verbs_fixture.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace test_verbs_reap {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// A lane whose first write has ended unseen, and on which a second one is being posted.
struct BusyLane {
    BusyLane() {
        fake::hold_completions(true);
        first = post(pair.a, reach.route, request(Kind::write, 0, 0, 300));
        fake::hold_posts(pair.end_a.queue_pairs);
        poster = std::thread([this] { second = post(pair.a, reach.route, request(Kind::write, 0, 0, 300)); });
        REQUIRE(eventually([] { return fake::posts_waiting() == 1; }));
    }

    VerbsPair pair;
    Reach reach = pair.reach(4096);
    Posted first;
    Posted second;
    std::thread poster;
};

} // namespace

TEST_CASE("verbs reap: who polls does not wait at once for a lane that is being posted to") {
    BusyLane busy;
    VerbsPair& pair = busy.pair;
    const auto& domain = pair.domains_a[0];
    pair.a.engine->poller().exclusive([&] {
        fake::hold_completions(false);
        CHECK(domain->poll() == Found::nothing);
        CHECK(domain->keeps_ends());
    });
    CHECK_FALSE(busy.first.op->done());
    fake::hold_posts({});
    busy.poster.join();
    CHECK(pair.a.wait(busy.first) == kOk);
    CHECK(pair.a.wait(busy.second) == kOk);
    CHECK_FALSE(domain->keeps_ends());
    CHECK(fake::census().misuses == 0);
}

TEST_CASE("verbs reap: an end is told to who waits for it, also while its lane is posted to without a pause") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    fake::hold_completions(true);
    const Posted first = post(pair.a, reach.route, request(Kind::write, 0, 0, 300));
    fake::slow_posts(pair.end_a.queue_pairs, std::chrono::milliseconds(10));
    std::atomic<bool> told{false};
    std::vector<Posted> others;
    std::thread poster([&] {
        while (!told.load()) {
            others.push_back(post(pair.a, reach.route, request(Kind::write, 0, 0, 300)));
        }
    });
    const auto queue = std::make_shared<CompletionQueue>();
    REQUIRE(first.op->arm(queue, 7)); // as an event loop does
    pair.a.engine->note_awaited();
    fake::hold_completions(false);
    CHECK(eventually([&] { return !queue->drain().empty(); }));
    told.store(true);
    poster.join();
    for (const Posted& each : others) {
        CHECK(pair.a.wait(each) == kOk);
    }
}

TEST_CASE("verbs reap: what has ended when its lane is closed ends well, also while that is posted to") {
    BusyLane busy;
    VerbsPair& pair = busy.pair;
    fake::hold_completions(false);
    std::thread later([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100)); // meanwhile a caller waits for it
        fake::hold_posts({});
    });
    pair.a.engine->close_endpoint(pair.a.lane, {Status::closed, Reason::lane_closed});
    busy.poster.join();
    later.join();
    CHECK(busy.first.op->status() == Status::ok);
}

} // namespace test_verbs_reap

#endif
