// Tests a peer that lies in its answers, or asks twice by one ticket: that ends the lane, and frees no memory early.
#include "raw_peer.hpp"

namespace test_framed_hostile_answers {

using namespace zerohop;
using namespace zerohop::test;

namespace {

void data(Target& target, const Asked& asked, uint64_t offset, size_t nbytes, uint8_t flags = 0) {
    target.peer.send(reply(FrameKind::read_data, asked, offset, flags), {}, Bytes(nbytes, 0xAA));
}

// Posts a recv, announces a message of as many bytes, and returns once it is granted.
Posted granted(Target& target, const std::shared_ptr<Region>& buffer, FrameHeader& send, uint32_t ticket) {
    send.kind = FrameKind::send;
    send.ticket = ticket;
    send.arg = buffer->nbytes();
    Posted recv = post(target.side, message(Kind::recv, buffer, send.arg));
    REQUIRE(target.peer.send(send));
    target.peer.receive(FrameKind::clear_to_send);
    return recv;
}

} // namespace

TEST_CASE("hostile: answers with a status that no answer has") {
    for (const std::string& provider : kProviders) {
        for (const int status : {1, 11, 12, 200, 255}) {
            for (const Kind kind : {Kind::write, Kind::read}) {
                CAPTURE(provider);
                CAPTURE(status);
                Target target(provider);
                const auto local = target.side.alloc(64);
                Asked asked = ask(target, kind, local, 64);
                FrameHeader header = reply(kind == Kind::read ? FrameKind::read_data : FrameKind::ack, asked, 0, kLast);
                header.status = static_cast<uint8_t>(status);
                header.reason = 200;
                REQUIRE(target.peer.send(header));
                const Outcome outcome = target.side.wait(asked.posted.op);
                CHECK(outcome.status == Status::protocol);
                CHECK(outcome.reason <= Reason::user);
                CHECK(target.side.engine->operations().pending() == 0);
            }
        }
    }
}

TEST_CASE("hostile: an answer that says that this end has cancelled, or has lost the peer") {
    for (const std::string& provider : kProviders) {
        for (const Status status : {Status::cancelled, Status::peer_lost}) {
            for (const Kind kind : {Kind::write, Kind::read, Kind::fetch_add}) {
                CAPTURE(provider);
                CAPTURE(static_cast<int>(status));
                CAPTURE(static_cast<int>(kind));
                Target target(provider);
                const auto local = target.side.alloc(64);
                Asked asked = ask(target, kind, local, kind == Kind::fetch_add ? 8 : 64);
                FrameHeader header = reply(FrameKind::ack, asked, 0, kLast);
                header.status = static_cast<uint8_t>(status);
                REQUIRE(target.peer.send(header));
                CHECK(target.side.wait(asked.posted.op) == kMalformed);
            }
        }
    }
}

TEST_CASE("hostile: reads that end well before all of their bytes have come") {
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            const auto ends = [&](const std::function<void(Target&, Asked&)>& lie) {
                Target target(provider);
                const auto local = target.side.alloc(4096, device);
                Asked asked = ask(target, Kind::read, local, 100);
                lie(target, asked);
                CHECK(target.side.wait(asked.posted.op) == kMalformed);
                CHECK(eventually([&] { return local->pins() == 0; }));
            };
            ends([&](Target& t, Asked& a) { t.peer.send(reply(FrameKind::ack, a, 0, kLast)); });
            ends([&](Target& t, Asked& a) { data(t, a, 0, 0, kLast); });
            ends([&](Target& t, Asked& a) { data(t, a, 0, 99, kLast); });
            ends([&](Target& t, Asked& a) { data(t, a, 0, 99, kLast | kAborted); });
            ends([&](Target& t, Asked& a) { data(t, a, 1, 99, kLast); });
            ends([&](Target& t, Asked& a) { // as many bytes, but some of them twice
                data(t, a, 0, 50, 0);
                data(t, a, 0, 50, kLast);
            });
        }
    }
}

TEST_CASE("hostile: messages that end well before all of their bytes have come") {
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            const auto ends = [&](const std::vector<std::pair<uint64_t, size_t>>& pieces, uint8_t flags) {
                Target target(provider);
                const auto buffer = target.side.alloc(100'000, device);
                FrameHeader frame;
                Posted recv = granted(target, buffer, frame, 3);
                frame.kind = FrameKind::send_data;
                for (const auto& [offset, nbytes] : pieces) {
                    frame.offset = offset;
                    frame.flags = nbytes == pieces.back().second ? flags : 0;
                    target.peer.send(frame, {}, Bytes(nbytes, 0xAA));
                }
                CHECK(target.side.wait(recv.op) == kMalformed);
                CHECK(eventually([&] { return buffer->pins() == 0; }));
            };
            ends({{0, 0}}, kLast);
            ends({{0, 100}}, kLast);
            ends({{0, 100}}, kLast | kAborted);
            ends({{1, 99'999}}, kLast);
            ends({{0, 60'000}, {0, 40'000}}, kLast);
        }
    }
}

TEST_CASE("hostile: more answers than questions") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Target target(provider);
        const auto local = target.side.alloc(4096);
        Asked asked = ask(target, Kind::write, local, 64);
        REQUIRE(target.peer.send(reply(FrameKind::ack, asked, 0, kLast)));
        CHECK(target.side.wait(asked.posted.op) == kOk);
        target.peer.send(reply(FrameKind::ack, asked, 0, kLast));
        CHECK(target.ends_with(kMalformed));
    }
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        // The peer answers everything while the device still copies, and then once more.
        Target target(provider);
        target.side.sim->delay(0, 500 * kMillisecond, 0);
        const auto local = target.side.alloc(4096, kSimDevice);
        Asked asked = ask(target, Kind::read, local, 64);
        REQUIRE(target.peer.send(reply(FrameKind::read_data, asked, 0, kLast), {}, Bytes(64, 1)));
        target.peer.send(reply(FrameKind::ack, asked, 0, kLast));
        CHECK(target.ends_with(kMalformed));
        CHECK(target.side.wait(asked.posted.op).status == Status::protocol);
        CHECK(eventually([&] { return local->pins() == 0; }));
    }
}

TEST_CASE("hostile: data that was not asked for") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        const auto ends = [&](const std::function<void(Target&, Asked&)>& lie, Kind kind) {
            Target target(provider);
            const auto local = target.side.alloc(4096);
            target.side.put(*local, Bytes(4096, 5));
            Asked asked = ask(target, kind, local, 100);
            lie(target, asked);
            CHECK(target.ends_with(kMalformed));
            CHECK(target.side.wait(asked.posted.op) == kMalformed);
            CHECK(target.side.get(*local, 100, 3996) == Bytes(3996, 5));
        };
        ends([&](Target& t, Asked& a) { data(t, a, 0, 101); }, Kind::read);
        ends([&](Target& t, Asked& a) { data(t, a, 100, 1); }, Kind::read);
        ends([&](Target& t, Asked& a) { data(t, a, UINT64_MAX, 1); }, Kind::read);
        ends([&](Target& t, Asked& a) { data(t, a, 0, 10); }, Kind::write);
        ends([&](Target& t, Asked& a) { t.peer.send(reply(FrameKind::clear_to_send, a, 0, 0)); }, Kind::write);
    }
}

TEST_CASE("hostile: an answer while the device still copies does not give the memory back") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Target target(provider);
        constexpr size_t kBytes = 256 * 1024;
        const auto local = target.side.alloc(kBytes, kSimDevice);
        target.side.put(*local, Bytes(kBytes, 5));
        target.side.sim->delay(0, 0, 1); // a quarter of a second for all of it, and no time for the byte read below
        Asked asked = ask(target, Kind::read, local, kBytes);
        REQUIRE(target.peer.send(reply(FrameKind::read_data, asked, 0, 0), {}, Bytes(kBytes, 6)));
        REQUIRE(target.peer.send(reply(FrameKind::ack, asked, 0, kLast)));
        CHECK(target.side.wait(asked.posted.op) == kOk);
        CHECK(target.side.get(*local, kBytes - 1, 1) == Bytes(1, 6)); // as the operation said, its copy was over
    }
}

TEST_CASE("hostile: one ticket for two messages") {
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider);
            const auto buffer = target.side.alloc(100'000, device);
            FrameHeader send;
            Posted first = granted(target, buffer, send, 3);
            REQUIRE(target.peer.send(send));
            // The peer sends half a frame of data, and then a second recv takes the ticket.
            FrameHeader data;
            data.kind = FrameKind::send_data;
            data.ticket = 3;
            data.flags = kLast;
            data.payload = 100'000;
            REQUIRE(target.peer.send_bytes(&data, sizeof data));
            const Bytes half(50'000, 0xAA);
            REQUIRE(target.peer.send_bytes(half.data(), half.size()));
            Posted second = post(target.side, message(Kind::recv, buffer, 100'000));
            CHECK(target.ends_with(kMalformed));
            target.peer.send_bytes(half.data(), half.size()); // nobody takes these bytes
            CHECK(target.side.wait(first.op).status == Status::protocol);
            CHECK(target.side.wait(second.op).status == Status::protocol);
            CHECK(eventually([&] { return buffer->pins() == 0; }));
        }
    }
}

TEST_CASE("hostile: one ticket for a write to two shares, or for a message and a write") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Target target(provider, kSimDevice);
        const auto other = target.side.alloc(4096, kSimDevice);
        const ShareId share = target.side.engine->shares().add(other, 0, 4096, kReadWrite, kCapability);
        REQUIRE(target.peer.send(target.header(FrameKind::write, 0, 128), {}, Bytes(64, 1)));
        FrameHeader second = target.header(FrameKind::write, 0, 128, kLast);
        second.share_index = share.index;
        second.share_generation = share.generation;
        target.peer.send(second, {}, Bytes(64, 2));
        CHECK(target.ends_with(kMalformed));
    }
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device);
            const auto buffer = target.side.alloc(100'000, kSimDevice);
            FrameHeader send;
            Posted recv = granted(target, buffer, send, 7);
            target.peer.send(target.header(FrameKind::write, 0, 64, kLast), {}, Bytes(64, 1));
            CHECK(target.ends_with(kMalformed));
            CHECK(target.side.wait(recv.op).status == Status::protocol);
        }
    }
}

} // namespace test_framed_hostile_answers
