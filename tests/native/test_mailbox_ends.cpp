// Tests what is left of tagged messages and their receives when a sender, a lane or a mailbox ends.
#include "engine/mailboxes.hpp"
#include "mailbox_fixture.hpp"

namespace test_mailbox_ends {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::tagged;

TEST_CASE("mailbox: messages that are here stay when their sender is gone, and receives of it end") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Group pair(provider);
        const auto source = pair.a.alloc(kRoom);
        const auto target = pair.b.alloc(kRoom);
        pair.a.put(*source, pattern(3000, 5));
        CHECK(send(pair.a, source, 3000, 1).what == Posted::What::done);
        CHECK(send(pair.a, source, 200, 2).what == Posted::What::done);
        const Posted large = send(pair.a, source, kRoom, 3);
        arrive(pair.a, pair.b);
        const Posted named = recv(pair.b, target, kRoom, 4, 7);
        const Posted any = recv(pair.b, target, kRoom, 5);
        const Posted other = recv(pair.b, target, kRoom, kAny, 8);
        pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
        pair.b.engine->lose_member(kScope, 7, kLost);
        CHECK(pair.b.wait(named.op) == kLost);
        CHECK(pair.b.wait(any.op) == kLost);
        CHECK((any.op->value() >> 32) == 7);
        CHECK(!other.op->done());
        const Posted second = recv(pair.b, target, kRoom, 2, 7);
        CHECK(pair.b.wait(second.op) == kOk);
        const Posted first = recv(pair.b, target, kRoom, kAny);
        REQUIRE(pair.b.wait(first.op) == kOk);
        CHECK(first.op->bytes_done() == 3000);
        CHECK(same_bytes(pair.b.get(*target, 0, 3000), pattern(3000, 5)));
        CHECK(pair.b.wait(recv(pair.b, target, kRoom, kAny, 7)) == kLost);
        // A receive of any sender has told of it already: the next one waits for the others.
        const Posted next = recv(pair.b, target, kRoom, kAny);
        CHECK(!next.op->done());
    }
}

TEST_CASE("mailbox: a loss that no receive could tell is told by the next one of any sender, once") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    pair.b.engine->lose_member(kScope, 3, kLost);
    const Posted told = recv(pair.b, target, 8, kAny);
    CHECK(pair.b.wait(told.op) == kLost);
    pair.b.engine->lose_member(kScope, 3, kLost); // found again, in another way
    CHECK((told.op->value() >> 32) == 3);
    const Posted next = recv(pair.b, target, 8, kAny);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(pair.b.wait(next.op) == kOk);
}

TEST_CASE("mailbox: a lost sender that is back is waited for again") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    pair.b.engine->lose_member(kScope, 7, kLost);
    CHECK(pair.b.wait(recv(pair.b, target, 8, kAny, 7)) == kLost);
    pair.b.engine->restore_member(kScope, 7);
    const Posted named = recv(pair.b, target, 8, 1, 7);
    const Posted any = recv(pair.b, target, 8, 2);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 2).what == Posted::What::done);
    CHECK(pair.b.wait(named.op) == kOk);
    CHECK(pair.b.wait(any.op) == kOk);
}

TEST_CASE("mailbox: a peer may send with several numbers, as ranks that share it do") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    for (const uint32_t rank : {7U, 8U, 7U}) {
        CHECK(send(pair.a, pair.a.alloc(8), 8, 1, rank).what == Posted::What::done);
        CHECK(pair.b.wait(recv(pair.b, target, 8, 1, rank)) == kOk);
    }
    pair.b.engine->lose_member(kScope, 8, kLost);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1, 8)) == kLost);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1, 8).what == Posted::What::done); // it is back
    arrive(pair.a, pair.b);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1, 8)) == kOk);
    const int peer = pair.b.peer->id();
    CHECK(pair.b.engine->forget_member(kScope, peer, {5, 7}) == std::vector<uint32_t>{5, 7, 8});
    CHECK(pair.b.engine->forget_member(kScope, peer, {}).empty());
}

TEST_CASE("mailbox: memory for a message whose bytes have been sent ends the lane") {
    Side side;
    RawPeer peer(side, "shm");
    CHECK(send(side, side.alloc(8), 8, 1).what == Posted::What::done);
    FrameHeader header = peer.receive(FrameKind::send);
    header.kind = FrameKind::clear_to_send;
    header.flags = 0;
    CHECK(peer.send(header));
    CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
    side.close();
}

TEST_CASE("mailbox: a loss ends the receives that find no message, also where another one is about to take it") {
    Group pair("shm");
    const auto target = pair.b.alloc(8);
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    Posted first;
    Posted second;
    Posted third;
    pair.b.engine->poller().exclusive([&] {
        first = recv(pair.b, target, 8, kAny);
        second = recv(pair.b, target, 8, 1, 7);
        pair.b.engine->lose_member(kScope, 7, kLost);
        third = recv(pair.b, target, 8, 1, 7);
    });
    CHECK(pair.b.wait(first.op) == kOk);
    CHECK(pair.b.wait(second.op) == kLost);
    CHECK(pair.b.wait(third.op) == kLost);
}

TEST_CASE("mailbox: a message of a lane that has closed stays when a receive into a device's memory cannot have it") {
    Group pair("shm");
    const auto source = pair.a.alloc(100);
    const auto target = pair.b.alloc(100);
    pair.a.put(*source, pattern(100, 1));
    CHECK(send(pair.a, source, 100, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
    const Outcome closed{Status::peer_lost, Reason::lane_closed};
    CHECK(pair.b.wait(recv(pair.b, pair.b.alloc(100, kSimDevice), 100, 1)) == closed);
    CHECK(pair.b.wait(recv(pair.b, target, 100, 1)) == kOk);
    CHECK(same_bytes(pair.b.get(*target), pattern(100, 1)));
}

TEST_CASE("mailbox: a flush does not wait until somebody receives a small message") {
    Group pair("tcp");
    CHECK(send(pair.a, pair.a.alloc(8), 8, 1).what == Posted::What::done);
    CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk);
    const auto large = pair.a.alloc(100'000);
    const Posted sent = send(pair.a, large, 100'000, 1);
    const Posted flush = post(pair.a, request(Kind::flush, 0, 0, 0));
    arrive(pair.a, pair.b);
    CHECK(!flush.op->done());
    const auto target = pair.b.alloc(100'000);
    CHECK(pair.b.wait(recv(pair.b, target, 100'000, 1)) == kOk); // the small one
    CHECK(pair.b.wait(recv(pair.b, target, 100'000, 1)) == kOk);
    CHECK(pair.a.wait(sent) == kOk);
    CHECK(pair.a.wait(flush) == kOk);
}

TEST_CASE("mailbox: a loss in the middle of a message names the sender") {
    Side side;
    side.engine->open_mailbox(1);
    const auto target = side.alloc(100'000);
    Posted received;
    {
        RawPeer peer(side, "shm");
        FrameHeader header{.kind = FrameKind::send, .flags = framed::kTagged, .arg = 100'000};
        header.share_index = 1;
        header.notify = 5;
        REQUIRE(peer.send(header));
        received = side.engine->post_tagged_receive(1, {}, message(Kind::recv, target, 100'000));
        (void)peer.receive(FrameKind::clear_to_send);
    }
    CHECK(!side.wait(received.op).ok());
    CHECK((received.op->value() >> 32) == 5);
    side.close();
}

TEST_CASE("mailbox: a message that its sender has given up takes no receive") {
    Group pair("tcp");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    const Posted cancelled = send(pair.a, source, kRoom, 1);
    arrive(pair.a, pair.b);
    REQUIRE(cancelled.op->finish(kCancelled));
    pair.a.engine->poller().kick();
    CHECK(eventually([&] { return source->pins() == 0; }));
    const Posted received = recv(pair.b, target, kRoom, 1);
    CHECK(send(pair.a, source, 10, 1).what == Posted::What::done);
    CHECK(pair.b.wait(received.op) == kOk);
    CHECK(received.op->bytes_done() == 10);
}

TEST_CASE("mailbox: once it is closed, receives end, and senders are told") {
    Group pair("shm");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    const Posted kept = send(pair.a, source, kRoom, 1);
    CHECK(send(pair.a, source, 8, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    const Posted waiting = recv(pair.b, target, 8, 2);
    const Outcome closed{Status::closed, Reason::owner_closed};
    pair.b.engine->close_mailbox(kScope, closed);
    CHECK(pair.b.wait(waiting.op) == closed);
    CHECK(pair.b.wait(recv(pair.b, target, 8, 1)) == closed);
    CHECK(pair.a.wait(kept) == kGivenUp);
    CHECK(pair.a.wait(send(pair.a, source, kRoom, 1)) == kGivenUp);
    // There is room for as many small ones as before.
    for (uint32_t i = 0; i < 3 * framed::kMaxUnmatched; ++i) {
        REQUIRE(send(pair.a, source, 8, 1).what == Posted::What::done);
    }
}

TEST_CASE("mailbox: more messages than may wait, and one ticket for two, end the lane") {
    for (const bool twice : {false, true}) {
        Side side;
        RawPeer peer(side, "shm");
        FrameHeader header{.kind = FrameKind::send, .flags = framed::kTagged, .arg = 100'000};
        for (uint32_t i = 0; i <= framed::kMaxUnmatched; ++i) {
            header.ticket = twice ? 1 : i;
            header.share_index = i; // a mailbox each, which nobody has opened
            if (!peer.send(header)) {
                break;
            }
        }
        CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
        side.close();
    }
}

TEST_CASE("mailbox: of one that is closed and empty nothing stays but its scope") {
    Mailboxes mailboxes;
    Pair pair("shm");
    const Outcome closed{Status::closed, Reason::owner_closed};
    const std::shared_ptr<Endpoint> lane = pair.b.lane;
    for (uint64_t scope = 1; scope <= 100; ++scope) {
        const std::shared_ptr<Mailbox> mailbox = mailboxes.at(scope);
        mailbox->open();
        ArrivedSend sent{.ticket = 1, .nbytes = 0, .eager = true, .bytes = {}};
        REQUIRE(mailbox->keep({scope, 1, 1}, lane, sent));
        CHECK(mailbox->close(closed).size() == 1);
    }
    mailboxes.drop_ended();
    CHECK(mailboxes.count() == 100); // the senders are to be told
    for (uint64_t scope = 1; scope <= 100; ++scope) {
        Mailbox::Lanes others;
        const auto refused = mailboxes.at(scope)->take(lane.get(), others);
        REQUIRE(refused.has_value());
        CHECK_FALSE(refused->recv.op);
        mailboxes.at(scope)->decide(refused->kept, true);
    }
    mailboxes.drop_ended();
    CHECK(mailboxes.count() == 0);
    const std::shared_ptr<Mailbox> again = mailboxes.at(7);
    ArrivedSend late{.ticket = 2, .nbytes = 0, .eager = true, .bytes = {}};
    CHECK_FALSE(again->keep({7, 1, 1}, lane, late));
    CHECK(again->post(Wanted{}, {}).failed == closed);
    CHECK(again->note_member(1, 1));
    CHECK(mailboxes.count() == 0);
}

TEST_CASE("mailbox: a receive into a device's memory ends with a short message, or leaves it to the next one") {
    Group pair("tcp");
    const auto source = pair.a.alloc(100);
    const auto target = pair.b.alloc(100, kSimDevice);
    for (unsigned i = 0; i < 400; ++i) {
        CAPTURE(i);
        const Bytes bytes = pattern(100, i);
        pair.a.put(*source, bytes);
        const Posted received = recv(pair.b, target, 100, i);
        CHECK(send(pair.a, source, 100, i).what == Posted::What::done);
        const uint64_t until = now_ns() + i % 40 * kMicrosecond;
        (void)pair.b.engine->wait([&] { return now_ns() >= until; }, until, 0, false);
        if (received.op->finish({Status::cancelled, Reason::user})) {
            REQUIRE(pair.b.wait(recv(pair.b, target, 100, i).op) == kOk);
        } else {
            REQUIRE(pair.b.wait(received.op) == kOk);
            CHECK(received.op->value() == value_of(Envelope{kScope, 7, i}));
        }
        REQUIRE(same_bytes(pair.b.get(*target), bytes));
    }
}

} // namespace test_mailbox_ends
