// Tests several tagged messages in one frame, and messages that are counted and not kept.
#include "mailbox_fixture.hpp"

namespace test_mailbox_packs {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::tagged;

constexpr uint64_t kToken = 77;

// Lays messages out as they travel.
Bytes packed(const std::vector<Bytes>& messages) {
    Bytes frame;
    for (const Bytes& message : messages) {
        const auto length = static_cast<uint16_t>(message.size());
        const auto* const bytes = reinterpret_cast<const Bytes::value_type*>(&length);
        frame.insert(frame.end(), bytes, bytes + sizeof(length));
    }
    for (const Bytes& message : messages) {
        frame.insert(frame.end(), message.begin(), message.end());
    }
    return frame;
}

Posted send_packed(const Side& side, const std::vector<Bytes>& messages, uint32_t tag, bool nowait = false) {
    const Envelope envelope{kScope, 7, tag};
    const Bytes frame = packed(messages);
    Request request;
    request.kind = Kind::send;
    request.envelope = &envelope;
    request.bytes = frame.data();
    request.nbytes = frame.size();
    request.packed = static_cast<uint32_t>(messages.size());
    return side.engine->post(*side.lane, request, nowait);
}

std::vector<Bytes> some_messages(unsigned seed) {
    std::vector<Bytes> messages;
    for (const size_t nbytes : {8, 0, 1, 3000, 17}) {
        messages.push_back(pattern(nbytes, ++seed));
    }
    return messages;
}

TEST_CASE("mailbox: messages of one frame are received one by one, in their order, and give their room back") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int to : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(to);
            Group pair(provider);
            const auto target = pair.b.alloc(8192, to);
            for (unsigned round = 0; round < 2 * framed::kMaxUnmatched; ++round) {
                const std::vector<Bytes> messages = some_messages(round);
                std::vector<Posted> received;
                if (round % 2 == 0) { // some wait, and some do not
                    received.push_back(recv(pair.b, target, 8192, 3));
                }
                REQUIRE(send_packed(pair.a, messages, 3).what == Posted::What::done);
                for (size_t i = 0; i < messages.size(); ++i) {
                    if (received.size() == i) {
                        received.push_back(recv(pair.b, target, 8192, round % 3 == 0 ? kAny : 3));
                    }
                    REQUIRE(pair.b.wait(received[i].op) == kOk);
                    REQUIRE(received[i].op->bytes_done() == messages[i].size());
                    REQUIRE(same_bytes(pair.b.get(*target, 0, messages[i].size()), messages[i]));
                }
            }
        }
    }
}

TEST_CASE("mailbox: messages of one frame stay when their lane is gone, and are refused when the mailbox closes") {
    const std::vector<Bytes> messages = some_messages(5);
    {
        Group pair("shm");
        REQUIRE(send_packed(pair.a, messages, 3).what == Posted::What::done);
        arrive(pair.a, pair.b);
        const auto target = pair.b.alloc(8192);
        REQUIRE(pair.b.wait(recv(pair.b, target, 8192, 3)) == kOk);
        pair.b.engine->drop_peer(pair.b.peer->id(), kLost);
        for (size_t i = 1; i < messages.size(); ++i) {
            const Posted received = recv(pair.b, target, 8192, 3);
            REQUIRE(pair.b.wait(received.op) == kOk);
            CHECK(same_bytes(pair.b.get(*target, 0, messages[i].size()), messages[i]));
        }
    }
    Group pair("shm");
    REQUIRE(send_packed(pair.a, messages, 3).what == Posted::What::done);
    arrive(pair.a, pair.b);
    pair.b.engine->close_mailbox(kScope, {Status::closed, Reason::owner_closed});
    for (uint32_t i = 0; i < 3 * framed::kMaxUnmatched; ++i) { // each frame is answered
        REQUIRE(send_packed(pair.a, messages, 3).what == Posted::What::done);
    }
}

TEST_CASE("mailbox: a frame takes its turn among the messages that wait, and a full window takes no more") {
    Group pair("shm");
    for (uint32_t i = 0; i < framed::kMaxUnmatched; ++i) {
        REQUIRE(send_packed(pair.a, {pattern(4, i), pattern(4, i + 1000)}, i).what == Posted::What::done);
    }
    CHECK(send_packed(pair.a, {pattern(4, 1)}, 1, true).what == Posted::What::retry);
    const auto target = pair.b.alloc(4);
    for (uint32_t i = 0; i < framed::kMaxUnmatched; ++i) {
        for (const unsigned seed : {i, i + 1000}) {
            const Posted received = recv(pair.b, target, 4, kAny);
            REQUIRE(pair.b.wait(received.op) == kOk);
            REQUIRE((received.op->value() & UINT32_MAX) == i);
            REQUIRE(same_bytes(pair.b.get(*target), pattern(4, seed)));
        }
    }
    CHECK(pair.a.wait(send_packed(pair.a, {pattern(4, 1)}, 1)) == kOk);
}

TEST_CASE("mailbox: bytes that are too long to be copied are refused") {
    Group pair("shm");
    CHECK(send_packed(pair.a, {pattern(8188, 1), {}}, 1).what == Posted::What::done);
    CHECK(send_packed(pair.a, {pattern(8189, 1), {}}, 1).what == Posted::What::failed);
    const auto target = pair.b.alloc(8192);
    CHECK(pair.b.wait(recv(pair.b, target, 8192, 1)) == kOk);
}

TEST_CASE("mailbox: short messages are counted, and who waits for so many is told") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Group pair(provider);
        const auto queue = std::make_shared<CompletionQueue>();
        const auto tally = std::make_shared<Tally>(queue, kToken);
        const auto target = pair.b.alloc(10'000);
        const auto source = pair.a.alloc(10'000);
        // The first message of a sender is received, and so it is known.
        const Posted first = recv(pair.b, target, 10'000, kAny);
        pair.b.engine->count_messages(kScope, tally);
        REQUIRE(send(pair.a, source, 8, 1).what == Posted::What::done);
        REQUIRE(pair.b.wait(first.op) == kOk);
        const Posted waits = recv(pair.b, target, 10'000, kAny);
        tally->want(1500);
        for (uint64_t i = 0; i < 500; ++i) {
            REQUIRE(send(pair.a, source, 8, 1).what == Posted::What::done);
        }
        arrive(pair.a, pair.b);
        CHECK(tally->count() == 500);
        CHECK(queue->empty());
        for (uint64_t i = 0; i < 200; ++i) {
            REQUIRE(send_packed(pair.a, some_messages(1), 2).what == Posted::What::done);
        }
        arrive(pair.a, pair.b);
        CHECK(tally->count() == 1500);
        CHECK(queue->drain() == std::vector<uint64_t>{kToken});
        tally->want(1000); // there are as many already
        CHECK(queue->drain() == std::vector<uint64_t>{kToken});
        CHECK(!waits.op->done());
        const Posted large = send(pair.a, source, 10'000, 9);
        REQUIRE(pair.b.wait(waits.op) == kOk); // it is for a receive
        CHECK(pair.a.wait(large) == kOk);
        CHECK(tally->count() == 1500);
    }
}

TEST_CASE("mailbox: a frame of messages cannot be given up") {
    Side side;
    side.engine->open_mailbox(1);
    RawPeer peer(side, "shm");
    const Bytes payload = packed(some_messages(1));
    FrameHeader header{.kind = FrameKind::send, .flags = framed::kTagged, .ticket = 3};
    header.offset = some_messages(1).size();
    header.arg = payload.size();
    header.share_index = 1;
    REQUIRE(peer.send(header, {}, payload));
    (void)peer.send({.kind = FrameKind::withdraw, .ticket = 3});
    CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
    side.close();
}

TEST_CASE("mailbox: a frame of messages that no sender of ours makes ends the lane") {
    const Bytes good = packed(some_messages(1));
    struct Bad {
        uint64_t count;
        size_t nbytes;
        bool tagged;
    };
    for (const Bad& bad : {Bad{6, good.size(), true}, Bad{4, good.size(), true}, Bad{5, good.size() - 1, true},
                           Bad{5, 8, true}, Bad{framed::kMostPacked + 1, 8000, true}, Bad{UINT64_MAX, 100, true},
                           Bad{5, good.size(), false}, Bad{5, 0, true}}) {
        CAPTURE(bad.count);
        CAPTURE(bad.nbytes);
        Side side;
        side.engine->open_mailbox(1);
        RawPeer peer(side, "shm");
        Bytes payload = good;
        payload.resize(bad.nbytes);
        FrameHeader header{.kind = FrameKind::send, .flags = bad.tagged ? framed::kTagged : uint8_t{0}};
        header.offset = bad.count;
        header.arg = bad.nbytes;
        header.share_index = 1;
        (void)peer.send(header, {}, payload);
        CHECK(eventually([&] { return side.lane->state() == kMalformed; }));
        side.close();
    }
}

} // namespace test_mailbox_packs
