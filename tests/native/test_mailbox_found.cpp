// Tests receives that find a message and leave it for a claim, which names memory for it.
#include "mailbox_fixture.hpp"

namespace test_mailbox_found {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::tagged;

namespace {

constexpr size_t kPacket = 300;

// Finds a message; one of kPacket bytes at most is received at once, if there is memory.
Posted find(const Side& side, const std::shared_ptr<Region>& packet, uint64_t finder, int64_t tag = kAny) {
    Request request;
    request.kind = Kind::recv;
    request.local = packet;
    request.nbytes = packet ? kPacket : 0;
    return side.engine->post_tagged_receive(kScope, {kAny, tag}, request, finder);
}

Posted claim(const Side& side, const std::shared_ptr<Region>& target, uint64_t finder, size_t nbytes = kRoom) {
    return side.engine->post_claim(kScope, finder, message(Kind::recv, target, nbytes, 0));
}

} // namespace

TEST_CASE("mailbox: a message is found, and then received into the memory that its length asks for") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int from : {kHostDevice, kSimDevice}) {
            for (const int to : {kHostDevice, kSimDevice}) {
                for (const bool has_packet : {false, true}) {
                    CAPTURE(provider);
                    CAPTURE(from);
                    CAPTURE(to);
                    CAPTURE(has_packet);
                    Group pair(provider);
                    const auto source = pair.a.alloc(kRoom, from);
                    const auto target = pair.b.alloc(kRoom, to);
                    const auto packet = pair.b.alloc(kPacket, to);
                    uint64_t number = 0;
                    for (const size_t nbytes : kSizes) {
                        CAPTURE(nbytes);
                        const Bytes bytes = pattern(nbytes, static_cast<unsigned>(++number));
                        pair.a.put(*source, bytes);
                        const bool before = number % 2 == 0;
                        Posted found;
                        if (before) {
                            found = find(pair.b, has_packet ? packet : nullptr, number);
                        }
                        const Posted sent = send(pair.a, source, nbytes, 5);
                        if (!before) {
                            arrive(pair.a, pair.b);
                            found = find(pair.b, has_packet ? packet : nullptr, number);
                        }
                        REQUIRE(pair.b.wait(found.op) == kOk);
                        CHECK(found.op->bytes_done() == nbytes);
                        CHECK(found.op->value() == value_of(Envelope{kScope, 7, 5}));
                        const bool received = has_packet && nbytes <= kPacket;
                        if (!received) {
                            const Posted claimed = claim(pair.b, target, number);
                            REQUIRE(pair.b.wait(claimed.op) == kOk);
                            CHECK(claimed.op->bytes_done() == nbytes);
                            CHECK(claimed.op->value() == found.op->value());
                        }
                        REQUIRE(pair.a.wait(sent) == kOk);
                        REQUIRE(same_bytes(pair.b.get(received ? *packet : *target, 0, nbytes), bytes));
                        CHECK_FALSE(pair.b.wait(claim(pair.b, target, number)).ok()); // it was received
                    }
                }
            }
        }
    }
}

TEST_CASE("mailbox: a message that was found goes to nobody else until it is released") {
    Group pair("shm");
    const auto source = pair.a.alloc(8);
    const auto target = pair.b.alloc(16);
    for (uint8_t i = 1; i <= 2; ++i) {
        pair.a.put(*source, Bytes(8, i));
        CHECK(send(pair.a, source, 8, 1).what == Posted::What::done);
    }
    arrive(pair.a, pair.b);
    REQUIRE(pair.b.wait(find(pair.b, nullptr, 1).op) == kOk);
    REQUIRE(pair.b.wait(recv(pair.b, target, 8, 1).op) == kOk);
    CHECK(pair.b.get(*target, 0, 1)[0] == 2);
    const Posted waiting = recv(pair.b, target, 8, 1);
    arrive(pair.a, pair.b);
    CHECK_FALSE(waiting.op->done());
    pair.b.engine->release_found(kScope, 1);
    REQUIRE(pair.b.wait(waiting.op) == kOk);
    CHECK(pair.b.get(*target, 0, 1)[0] == 1);
    CHECK_FALSE(pair.b.wait(claim(pair.b, target, 1, 8)).ok());
}

TEST_CASE("mailbox: a claim that has ended, or was too short, and the next one") {
    Group pair("tcp");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    pair.a.put(*source, pattern(kRoom, 3));
    const Posted sent = send(pair.a, source, kRoom, 1);
    arrive(pair.a, pair.b);
    REQUIRE(pair.b.wait(find(pair.b, nullptr, 1).op) == kOk);
    Posted cancelled;
    pair.b.engine->poller().exclusive([&] {
        cancelled = claim(pair.b, target, 1);
        REQUIRE(cancelled.op->finish({Status::cancelled, Reason::user}));
    });
    const Posted claimed = claim(pair.b, target, 1);
    REQUIRE(pair.b.wait(claimed.op) == kOk);
    CHECK(same_bytes(pair.b.get(*target), pattern(kRoom, 3)));
    CHECK(pair.a.wait(sent) == kOk);

    CHECK(send(pair.a, source, 100, 1).what == Posted::What::done);
    arrive(pair.a, pair.b);
    REQUIRE(pair.b.wait(find(pair.b, nullptr, 2).op) == kOk);
    CHECK(pair.b.wait(claim(pair.b, target, 2, 99)) == Outcome{Status::protocol, Reason::truncated});
    CHECK_FALSE(pair.b.wait(claim(pair.b, target, 2)).ok());
}

TEST_CASE("mailbox: a long message with a header is left for a receive that reads it otherwise, and then answered") {
    for (const int from : {kHostDevice, kSimDevice}) {
        CAPTURE(from);
        Group pair("tcp");
        const auto source = pair.a.alloc(kRoom, from);
        const auto target = pair.b.alloc(kRoom);
        const Envelope envelope{kScope, 7, 1};
        const Message header = std::make_shared<const std::string>("where it is");
        const auto send_described = [&](size_t nbytes) {
            Request request = message(Kind::send, source, nbytes);
            request.envelope = &envelope;
            request.message = &header;
            return pair.a.engine->post(*pair.a.lane, request, false);
        };
        uint64_t finder = 0;
        const auto receive = [&](bool finds_described) {
            return pair.b.engine->post_tagged_receive(kScope, {kAny, kAny}, message(Kind::recv, target, kRoom),
                                                      ++finder, finds_described);
        };
        const Bytes bytes = pattern(kRoom, 3);
        pair.a.put(*source, bytes);

        const Posted carried = send_described(kRoom);
        REQUIRE(pair.b.wait(receive(false).op) == kOk);
        REQUIRE(pair.a.wait(carried) == kOk);
        CHECK(same_bytes(pair.b.get(*target), bytes));

        pair.b.put(*target, Bytes(kRoom, 0xEE));
        const Posted read = send_described(kRoom);
        const Posted found = receive(true);
        REQUIRE(pair.b.wait(found.op) == kOk);
        CHECK(found.op->bytes_done() == kRoom);
        CHECK(*pair.b.engine->take_header(kScope, finder) == *header);
        CHECK_FALSE(read.op->done());
        Request nowhere;
        nowhere.kind = Kind::recv;
        const Posted ended = pair.b.engine->post_claim(kScope, finder, nowhere);
        REQUIRE(pair.b.wait(ended.op) == kOk);
        CHECK(ended.op->bytes_done() == kRoom);
        CHECK(ended.op->value() == value_of(envelope));
        REQUIRE(pair.a.wait(read) == kOk);
        CHECK(same_bytes(pair.b.get(*target), Bytes(kRoom, 0xEE)));
        CHECK_FALSE(pair.b.wait(pair.b.engine->post_claim(kScope, finder, nowhere).op).ok());

        const Posted given_up = send_described(kRoom);
        REQUIRE(pair.b.wait(receive(true).op) == kOk);
        REQUIRE(given_up.op->finish({Status::cancelled, Reason::user}));
        CHECK(eventually([&] { return !source->pins(); })); // the receiver has forgotten it
        CHECK(pair.b.wait(pair.b.engine->post_claim(kScope, finder, nowhere).op) == kGivenUp);

        // A short one of the host's memory is here with its header.
        if (from == kHostDevice) {
            pair.b.put(*target, Bytes(kRoom, 0xEE));
            CHECK(send_described(100).what == Posted::What::done);
            REQUIRE(pair.b.wait(receive(true).op) == kOk);
            CHECK(same_bytes(pair.b.get(*target, 0, 100), Bytes(bytes.begin(), bytes.begin() + 100)));
        }
    }
}

TEST_CASE("mailbox: what was found and is small outlives its lane, and a claim of anything else fails") {
    for (const bool claimed_before : {false, true}) {
        CAPTURE(claimed_before);
        Group pair("tcp");
        const auto source = pair.a.alloc(kRoom);
        const auto target = pair.b.alloc(kRoom);
        pair.a.put(*source, pattern(3000, 4));
        CHECK(send(pair.a, source, 3000, 1).what == Posted::What::done);
        const Posted large = send(pair.a, source, kRoom, 2);
        arrive(pair.a, pair.b);
        REQUIRE(pair.b.wait(find(pair.b, nullptr, 1, 1).op) == kOk);
        REQUIRE(pair.b.wait(find(pair.b, nullptr, 2, 2).op) == kOk);
        Posted early;
        if (claimed_before) {
            early = claim(pair.b, target, 2);
        }
        pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
        if (claimed_before) { // it may have been as fast
            const Status status = pair.b.wait(early.op).status;
            CHECK((status == Status::peer_lost || status == Status::ok));
        }
        CHECK(eventually([&] { return pair.b.wait(claim(pair.b, target, 2)).status == Status::peer_lost; }));
        REQUIRE(pair.b.wait(claim(pair.b, target, 1)) == kOk);
        CHECK(same_bytes(pair.b.get(*target, 0, 3000), pattern(3000, 4)));
    }
}

TEST_CASE("mailbox: a sender gives up a message that was found; a mailbox that has one is closed") {
    Group pair("shm");
    const auto source = pair.a.alloc(kRoom);
    const auto target = pair.b.alloc(kRoom);
    const Posted given_up = send(pair.a, source, kRoom, 1);
    const Posted kept = send(pair.a, source, kRoom, 2);
    arrive(pair.a, pair.b);
    REQUIRE(pair.b.wait(find(pair.b, nullptr, 1, 1).op) == kOk);
    REQUIRE(pair.b.wait(find(pair.b, nullptr, 2, 2).op) == kOk);
    REQUIRE(given_up.op->finish({Status::cancelled, Reason::user}));
    CHECK(eventually([&] { return !target->pins() && pair.b.wait(claim(pair.b, target, 1)) == kGivenUp; }));
    const Outcome closed{Status::closed, Reason::owner_closed};
    pair.b.engine->close_mailbox(kScope, closed);
    CHECK(pair.a.wait(kept) == kGivenUp);
    CHECK(pair.b.wait(claim(pair.b, target, 2)) == closed);
}

} // namespace test_mailbox_found
