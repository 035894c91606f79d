// Tests a verbs lane's reaction to its device's events: queue pairs, queues, ports and devices that fail.
#ifdef ZEROHOP_VERBS

#include "provider/verbs/endpoint.hpp"
#include "verbs_fixture.hpp"

#include <atomic>
#include <poll.h>
#include <thread>

namespace test_verbs_events {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Returns the engine's next event token of that kind; fails the test if none comes.
uint64_t next_event(const Side& side, uint64_t kind) {
    uint64_t found = 0;
    REQUIRE(eventually([&] {
        for (const uint64_t token : side.engine->events()->drain()) {
            found = (token & kind) != 0 ? token : found;
        }
        return found != 0;
    }));
    return found;
}

std::vector<Posted> post_writes(VerbsPair& pair, const Reach& reach, int count) {
    std::vector<Posted> posted;
    posted.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
        posted.push_back(post(pair.a, reach.route, request(Kind::write, 0, 0, 300)));
    }
    return posted;
}

} // namespace

TEST_CASE("verbs events: a queue pair that fails takes its lane with it, and no other") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    const std::shared_ptr<Endpoint> first = pair.a.lane;
    const uint32_t failing = pair.end_a.queue_pairs[1];
    pair.connect();
    Reach second = reach;
    pair.route(second);

    fake::hold_requests(true);
    const std::vector<Posted> posted = post_writes(pair, reach, 5);
    fake::raise_qp(failing, IBV_EVENT_QP_FATAL);
    for (const Posted& each : posted) {
        CHECK(pair.a.wait(each) == kLaneReset);
    }
    fake::hold_requests(false);
    CHECK(first->state() == kLaneReset);
    CHECK(next_event(pair.a, kLaneDown) == (kLaneDown | static_cast<uint64_t>(pair.a.peer->id())));
    CHECK(post(pair.a, reach.route, request(Kind::write, 0, 0, 8)).outcome == kLaneReset);
    CHECK(pair.a.engine->wait([&] { return first->idle(); }, soon(), 0));

    CHECK(pair.domains_a[0]->alive());
    CHECK(run(pair.a, second.route, request(Kind::write, 0, 0, 4096, 5)) == kOk);
    CHECK(notification(pair.b).value == 5);
}

TEST_CASE("verbs events: an end that has everything but the completions ends all the same") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    fake::hold_completions(true);
    const std::vector<Posted> posted = post_writes(pair, reach, 5);
    fake::raise_qp(pair.end_a.queue_pairs[0], IBV_EVENT_QP_FATAL);
    for (const Posted& each : posted) {
        CHECK(pair.a.wait(each) == kLaneReset);
    }
    CHECK(pair.a.engine->wait([&] { return pair.a.lane->idle(); }, soon(), 0)); // no completion comes
}

TEST_CASE("verbs events: a completion queue that has run over, or a device that is lost, ends all lanes") {
    for (const ibv_event_type type : {IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_DEVICE_FATAL}) {
        CAPTURE(static_cast<int>(type));
        VerbsPair pair;
        const Reach reach = pair.reach(4096);
        const End first = pair.end_a;
        pair.connect();
        Reach second = reach;
        pair.route(second);
        const auto& domain = pair.domains_a[0];
        CHECK_FALSE(domain->lost());

        fake::hold_requests(true);
        const std::vector<Posted> posted = post_writes(pair, reach, 3);
        const std::vector<Posted> others = post_writes(pair, second, 3);
        if (type == IBV_EVENT_CQ_ERR) {
            fake::raise_cq_of(first.queue_pairs[0], type);
        } else {
            fake::raise_device(fake::kRoce0, type);
        }
        for (const Posted& each : posted) {
            CHECK(pair.a.wait(each) == kDeviceLost);
        }
        for (const Posted& each : others) {
            CHECK(pair.a.wait(each) == kDeviceLost);
        }
        CHECK_FALSE(domain->alive());
        CHECK(pair.a.engine->wait([&] { return domain->lost(); }, soon(), 0));
        CHECK(next_event(pair.a, kDomainChanged) == (kDomainChanged | static_cast<uint64_t>(domain->number())));
        CHECK(first.lane->state() == kDeviceLost);
        CHECK(pair.a.lane->state() == kDeviceLost);
        CHECK_THROWS_AS((void)pair.a.engine->add_endpoint("verbs", pair.a.peer->id(), pair.domains_a),
                        const NativeError&);
        CHECK(pair.a.engine->wait([&] { return first.lane->idle() && pair.a.lane->idle(); }, soon(), 0));
        fake::hold_requests(false);

        // A new domain on the port works like the first.
        pair.a.engine->close_domain(domain);
        pair.domains_a[0] = pair.a.engine->open_domain("verbs", fake::kRoce0, 1, kRoce);
        CHECK(pair.domains_a[0]->alive());
        pair.connect();
        Reach again = pair.reach(4096);
        CHECK(run(pair.a, again.route, request(Kind::write, 0, 0, 4096, 5)) == kOk);
        CHECK(notification(pair.b).value == 5);
    }
}

TEST_CASE("verbs events: a lane that was begun while its device failed is told, too") {
    VerbsPair pair;
    fake::raise_cq_of(pair.end_a.queue_pairs[0], IBV_EVENT_CQ_ERR);
    CHECK(pair.a.engine->wait([&] { return pair.domains_a[0]->lost(); }, soon(), 0));
    // The device fails just after a caller has checked that it is alive.
    const auto domain = std::dynamic_pointer_cast<verbs::VerbsDomain>(pair.domains_a[0]);
    const auto lane = std::make_shared<verbs::VerbsEndpoint>(*pair.a.engine, pair.a.peer, std::vector{domain});
    lane->connect(lane->address());
    pair.a.engine->poller().exclusive([&] {
        domain->poll();
        (void)lane->poll();
    });
    CHECK(lane->state() == kDeviceLost);
}

TEST_CASE("verbs events: a domain that is lost and held wakes nobody") {
    VerbsPair pair;
    const auto domain = pair.domains_a[0];
    fake::raise_cq_of(pair.end_a.queue_pairs[0], IBV_EVENT_CQ_ERR);
    CHECK(pair.a.engine->wait([&] { return domain->lost(); }, soon(), 0));
    pair.a.engine->close_domain(domain);
    fake::set_port(fake::kRoce0, false); // an event that nobody takes
    pollfd entry{pair.a.engine->poller().sockets_fd(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 0) == 0);
}

TEST_CASE("verbs events: no receive is lost with the lane that it came in on") {
    VerbsPair pair;
    const auto lane = pair.b.lane;
    const size_t before = fake::receives(fake::kRoce1);
    CHECK(before != 0);
    // Some messages have come in unseen when the lane ends, and its device resources are torn down at once.
    pair.b.engine->poller().exclusive([&] {
        for (int i = 0; i < 20; ++i) {
            CHECK(post(pair.a, request(Kind::notify, 0, 0, 0, i)).op);
        }
        CHECK(fake::receives(fake::kRoce1) < before);
        lane->close(kLaneReset);
        pair.domains_b[0]->woken(); // the device reports that it receives nothing more
        for (const uint64_t until = soon(); !lane->idle() && now_ns() < until;) {
            pair.domains_b[0]->poll();
            (void)lane->poll();
        }
        CHECK(lane->idle());
    });
    pair.connect();
    CHECK(fake::receives(fake::kRoce1) >= before);
}

TEST_CASE("verbs events: what went wrong with a lane is told beside what that means for the innocent") {
    VerbsPair pair;
    const auto lane = pair.a.lane;
    CHECK(lane->cause().ok());
    CHECK(pair.a.engine->quiet(lane));
    fake::fail_request(pair.end_a.queue_pairs[0], IBV_WC_RETRY_EXC_ERR);
    fake::hold_requests(true);
    const Posted posted = post(pair.a, request(Kind::notify, 0, 0, 0, 1));
    CHECK_FALSE(pair.a.engine->quiet(lane));
    fake::hold_requests(false);
    CHECK(pair.a.wait(posted) == kLaneReset);
    CHECK(lane->state() == kLaneReset);
    CHECK(lane->cause() == Outcome{Status::peer_lost, Reason::no_answer});
    CHECK(pair.a.engine->wait([&] { return lane->idle(); }, soon(), 0));
    CHECK(pair.a.engine->quiet(lane));
}

TEST_CASE("verbs events: an end whose last word has been taken has nothing under way, also where nobody polls") {
    VerbsPair pair;
    // The device wakes nobody for the end of a send.
    REQUIRE(pair.a.wait(post(pair.a, request(Kind::notify, 0, 0, 0, 1))) == kOk);
    CHECK(notification(pair.b).value == 1);
    CHECK(pair.a.engine->quiet(pair.a.lane));
    CHECK(pair.b.engine->quiet(pair.b.lane));
    const Posted waiting = post(pair.b, message(Kind::recv, pair.b.alloc(64, kHostDevice), 64));
    CHECK_FALSE(pair.b.engine->quiet(pair.b.lane));
    CHECK(pair.a.engine->quiet(pair.a.lane));
    static_cast<void>(waiting.op->finish(kCancelled));
}

TEST_CASE(
    "verbs events: what was done at the other end has happened here, also where the lane ends before anybody looks") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    std::vector<uint32_t> seen;
    pair.b.engine->poller().exclusive([&] { // nobody polls
        for (int i = 0; i < 20; ++i) {
            CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 64, i)) == kOk);
        }
    });
    pair.b.engine->close_endpoint(pair.b.lane, kLaneReset); // the news of its end comes by a faster way
    while (const auto note = pair.b.engine->pop_notification(0, 0, 0, false)) {
        seen.push_back(note->value);
    }
    CHECK(seen.size() == 20);
}

TEST_CASE("verbs events: whoever chose a port's addresses is told when they change") {
    Side side;
    const std::vector<std::shared_ptr<Domain>> domains{side.engine->open_domain("verbs", fake::kRoce0, 1, {})};
    side.peer = side.engine->add_peer(-1, -1);
    fake::raise_device(fake::kRoce0, IBV_EVENT_GID_CHANGE);
    CHECK(next_event(side, kDomainChanged) == (kDomainChanged | static_cast<uint64_t>(domains[0]->number())));
    CHECK(domains[0]->alive());
    // The domain also gives the LID or GID for later lanes.
    const auto global = [&] {
        verbs::QueuePairAddress address;
        const std::string bytes = side.engine->add_endpoint("verbs", side.peer->id(), domains)->address().bytes;
        std::memcpy(&address, bytes.data() + 4, sizeof address);
        return address.global;
    };
    CHECK(global() == 0);
    domains[0]->retune(kRoce);
    CHECK(global() == 1);
    CHECK_THROWS_AS(domains[0]->retune({{"typo", 1}}), const NativeError&);
    side.engine->close_domain(domains[0]);
    side.close();
}

TEST_CASE("verbs events: a port that goes down and comes back") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    const auto& domain = pair.domains_a[0];
    const uint64_t token = kDomainChanged | static_cast<uint64_t>(domain->number());
    fake::set_port(fake::kRoce0, false);
    CHECK(next_event(pair.a, kDomainChanged) == token);
    CHECK_FALSE(domain->alive());
    CHECK_FALSE(domain->lost());
    CHECK_THROWS_AS((void)pair.a.engine->add_endpoint("verbs", pair.a.peer->id(), pair.domains_a), const NativeError&);

    // Requests under way wait for the link.
    const Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 0, 4096));
    CHECK_FALSE(posted.op->done());
    fake::set_port(fake::kRoce0, true);
    CHECK(pair.a.wait(posted) == kOk);
    CHECK(next_event(pair.a, kDomainChanged) == token);
    CHECK(domain->alive());
    CHECK(pair.domains_b[0]->alive());
}

TEST_CASE("verbs events: what a device says of its memory without a link is the link's fault") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    fake::set_port(fake::kRoce0, false);
    for (const uint32_t number : pair.end_a.queue_pairs) {
        fake::fail_request(number, IBV_WC_LOC_QP_OP_ERR);
    }
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 300)) == Outcome{Status::peer_lost, Reason::port_down});
}

TEST_CASE("verbs events: whoever asks for what he may not gets the blame, and the others a reset") {
    for (const Kind kind : {Kind::write, Kind::read}) {
        CAPTURE(static_cast<int>(kind));
        VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}})});
        const Reach reach = pair.reach(4096);
        const Reach other = pair.reach(4096, kHostDevice, kHostDevice, kind == Kind::write ? kRightRead : kRightWrite);
        const uint64_t lying = pair.a.engine->add_route(lie_about(*pair.a.engine->route(other.route), 4096));
        const Bytes before = pair.b.get(*other.remote);

        fake::hold_requests(true);
        const Posted fine = post(pair.a, reach.route, request(Kind::write, 0, 0, 300));
        const Posted culprit = post(pair.a, lying, request(kind, 0, 0, 300));
        const std::vector<Posted> flushed = post_writes(pair, reach, 3);
        fake::hold_requests(false);
        CHECK(pair.a.wait(fine) == kOk);
        CHECK(pair.a.wait(culprit) == kRemoteAccess);
        for (const Posted& each : flushed) {
            CHECK(pair.a.wait(each) == kLaneReset);
        }
        CHECK(pair.a.peer->state().ok()); // the peer lives on
        CHECK(same_bytes(pair.b.get(*other.remote), before));
        // The other end is told by its own device.
        CHECK(pair.b.engine->wait([&] { return pair.b.lane->state() == kLaneReset; }, soon(), 0));
    }
}

TEST_CASE("verbs events: a page list with a page that may not be reached fails as one") {
    VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}})});
    const Reach reach = pair.reach(64 * 512);
    const uint64_t lying = pair.a.engine->add_route(lie_about(*pair.a.engine->route(reach.route), 2 * 64 * 512));
    std::vector<uint64_t> here;
    std::vector<uint64_t> there;
    for (uint64_t i = 0; i < 64; ++i) {
        here.push_back(i);
        there.push_back(i * 2);
    }
    CHECK(run(pair.a, lying, page_request(Kind::write, here, there, 512, 3)) == kRemoteAccess);
    CHECK(pair.a.engine->wait([&] { return pair.a.lane->idle(); }, soon(), 0));
    CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false)); // nothing was announced
}

TEST_CASE("verbs events: a peer that dies has denied nothing, though its memory goes before its queue pairs") {
    for (const bool pages : {false, true}) {
        CAPTURE(pages);
        Presence life;
        std::atomic<bool> alive{false};
        std::thread process([&] {
            life.hold();
            alive = true;
            alive.notify_one();
            alive.wait(true);
        });
        alive.wait(false);
        VerbsPair pair({.options_a = with(kRoce, {{"queue_pairs", 1}}), .life_of_b = &life});
        const Reach reach = pair.reach(128 * 512);
        const uint64_t gone = pair.a.engine->add_route(lie_about(*pair.a.engine->route(reach.route), 128 * 512, 1));
        std::vector<uint64_t> here;
        std::vector<uint64_t> there;
        for (uint64_t i = 0; i < 64; ++i) {
            here.push_back(i);
            there.push_back(i * 2);
        }
        fake::hold_requests(true);
        const Posted posted = pages ? post(pair.a, gone, page_request(Kind::write, here, there, 512))
                                    : post(pair.a, gone, request(Kind::write, 0, 0, 300));
        pair.a.engine->poller().exclusive([&] {
            alive = false;
            alive.notify_one();
            process.join();
            fake::hold_requests(false);
            // One poll takes a limited number of completions: the rest of the page list is not over when the lane is
            // closed.
            (void)pair.domains_a[0]->poll();
            (void)pair.a.lane->poll();
        });
        CHECK(pair.a.wait(posted) == Outcome{Status::peer_lost, Reason::process_died});
    }
}

TEST_CASE("verbs events: a peer whose end is gone does not answer") {
    VerbsPair pair;
    const Reach reach = pair.reach(4096);
    fake::fail_request(pair.end_a.queue_pairs[0], IBV_WC_RETRY_EXC_ERR);
    fake::fail_request(pair.end_a.queue_pairs[1], IBV_WC_RETRY_EXC_ERR);
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 300)) == Outcome{Status::peer_lost, Reason::no_answer});
    CHECK(pair.a.engine->wait([&] { return pair.a.lane->idle(); }, soon(), 0));
}

TEST_CASE("verbs events: what fails while a lane or a domain is made leaves nothing behind") {
    using fake::Call;
    Side side;
    side.peer = side.engine->add_peer(-1, -1);
    const fake::Census before = fake::census();
    for (const Call call : {Call::alloc_pd, Call::create_channel, Call::create_cq, Call::create_srq, Call::reg_mr}) {
        for (const int nth : {1, 2}) {
            CAPTURE(static_cast<int>(call));
            CAPTURE(nth);
            if (nth == 2 && call != Call::create_cq && call != Call::reg_mr) {
                continue; // there is only one such call
            }
            fake::fail_call(call, nth, ENOMEM);
            CHECK_THROWS_AS((void)side.engine->open_domain("verbs", fake::kRoce0, 1, kRoce), const NativeError&);
            CHECK(fake::census() == before);
        }
    }
    {
        const std::vector<std::shared_ptr<Domain>> domains{
            side.engine->open_domain("verbs", fake::kRoce0, 1, with(kRoce, {{"queue_pairs", 3}}))};
        const fake::Census opened = fake::census();
        for (int nth = 1; nth <= 3; ++nth) {
            CAPTURE(nth);
            fake::fail_call(Call::create_qp, nth, EMFILE);
            CHECK_THROWS_AS((void)side.engine->add_endpoint("verbs", side.peer->id(), domains), const NativeError&);
            CHECK(fake::census() == opened);
            fake::fail_call(Call::modify_qp, nth, EINVAL);
            CHECK_THROWS_AS((void)side.engine->add_endpoint("verbs", side.peer->id(), domains), const NativeError&);
            CHECK(fake::census() == opened);
        }
        side.engine->close_domain(domains[0]);
    }
    CHECK(fake::census() == before);
    fake::reset();
    side.close();
}

} // namespace test_verbs_events

#endif
