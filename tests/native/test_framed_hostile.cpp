// A peer that lies: its frames are refused or end the lane, and never cost more than the lane.
#include "raw_peer.hpp"

#include <random>
#include <sys/mman.h>

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr Outcome kBounds{Status::access_denied, Reason::bounds};
const std::vector<std::string> kProviders{"shm", "tcp"};

// What the engine asked of its peer, as the peer sees it.
struct Asked {
    Posted posted;
    FrameHeader header;
};

Asked ask(Target& target, Kind kind, const std::shared_ptr<Region>& local, uint64_t nbytes, int64_t notify = -1) {
    Asked asked;
    asked.posted = post(target.side, target.route(local, 1 << 30), request(kind, 0, 0, nbytes, notify));
    REQUIRE(asked.posted.what == Posted::What::posted);
    asked.header = target.peer.receive();
    return asked;
}

FrameHeader reply(FrameKind kind, const Asked& asked, uint64_t offset, uint8_t flags) {
    FrameHeader header;
    header.kind = kind;
    header.ticket = asked.header.ticket;
    header.offset = offset;
    header.flags = flags;
    return header;
}

} // namespace

TEST_CASE("hostile: frames that nobody sends end the lane") {
    struct Case {
        const char* what;
        std::function<void(FrameHeader&)> change; // of a write of nothing
    };
    const std::vector<Case> cases{
        {"kind 0", [](FrameHeader& h) { h.kind = FrameKind{0}; }},
        {"kind 200", [](FrameHeader& h) { h.kind = FrameKind{200}; }},
        {"payload", [](FrameHeader& h) { h.payload = framed::kMaxPayload + 1; }},
        {"payload at most", [](FrameHeader& h) { h.payload = UINT32_MAX; }},
        {"table", [](FrameHeader& h) { h.table = framed::kMaxTable + 1; }},
        {"table at most", [](FrameHeader& h) { h.table = UINT32_MAX; }},
        {"write with a table", [](FrameHeader& h) { h.table = 1; }},
        {"pages of 0 bytes", [](FrameHeader& h) { h.kind = FrameKind::write_pages, h.table = 1; }},
        {"no pages", [](FrameHeader& h) { h.kind = FrameKind::write_pages, h.page_bytes = 8; }},
        {"pages that are not the payload",
         [](FrameHeader& h) { h.kind = FrameKind::write_pages, h.table = 2, h.page_bytes = 8, h.payload = 8; }},
        {"pages whose product wraps",
         [](FrameHeader& h) { h.kind = FrameKind::write_pages, h.table = 4096, h.page_bytes = 1 << 20; }},
        {"no ranges", [](FrameHeader& h) { h.kind = FrameKind::write_ranges; }},
        {"ranges without lengths", [](FrameHeader& h) { h.kind = FrameKind::write_ranges, h.table = 3; }},
        {"ranges of 0 bytes", [](FrameHeader& h) { h.kind = FrameKind::write_ranges, h.table = 2; }},
        {"read with payload", [](FrameHeader& h) { h.kind = FrameKind::read, h.payload = 1; }},
        {"read with a table", [](FrameHeader& h) { h.kind = FrameKind::read, h.table = 1; }},
        {"read_pages too large", [](FrameHeader& h) { h.kind = FrameKind::read_pages, h.arg = UINT64_MAX; }},
        {"fetch_add of nothing", [](FrameHeader& h) { h.kind = FrameKind::fetch_add; }},
        {"fetch_add of two", [](FrameHeader& h) { h.kind = FrameKind::fetch_add, h.table = 2; }},
        {"compare_swap of one", [](FrameHeader& h) { h.kind = FrameKind::compare_swap, h.table = 1; }},
        {"notify with payload", [](FrameHeader& h) { h.kind = FrameKind::notify, h.payload = 1; }},
        {"ack with a table", [](FrameHeader& h) { h.kind = FrameKind::ack, h.table = 1; }},
        {"ack of nothing", [](FrameHeader& h) { h.kind = FrameKind::ack, h.flags = kLast; }},
        {"ack of a ticket past the window", [](FrameHeader& h) { h.kind = FrameKind::ack, h.ticket = 0xffff; }},
        {"data of nothing", [](FrameHeader& h) { h.kind = FrameKind::read_data; }},
        {"clear_to_send of nothing", [](FrameHeader& h) { h.kind = FrameKind::clear_to_send; }},
        {"send_data of nothing", [](FrameHeader& h) { h.kind = FrameKind::send_data, h.flags = kLast; }},
        {"send too large to be eager",
         [](FrameHeader& h) { h.kind = FrameKind::send, h.payload = h.arg = framed::kEagerBytes + 1; }},
        {"send of half", [](FrameHeader& h) { h.kind = FrameKind::send, h.payload = 8, h.arg = 16; }},
    };
    for (const std::string& provider : kProviders) {
        for (const Case& c : cases) {
            CAPTURE(provider);
            CAPTURE(std::string(c.what));
            Target target(provider);
            FrameHeader header = target.header(FrameKind::write, 0, 0, kLast);
            c.change(header);
            REQUIRE(target.peer.send_bytes(&header, sizeof header));
            if (header.table <= framed::kMaxTable) {
                const std::vector<uint64_t> rest(header.table);
                target.peer.send_bytes(rest.data(), rest.size() * 8);
            }
            CHECK(target.ends_with(kMalformed));
            CHECK(target.side.engine->events()->drain().size() == 1);
        }
    }
}

TEST_CASE("hostile: random bytes") {
    std::mt19937_64 random(11);
    for (const std::string& provider : kProviders) {
        for (int round = 0; round < 60; ++round) {
            Target target(provider, round % 2 == 0 ? kHostDevice : kSimDevice);
            target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
            for (int frames = 0; frames < 50; ++frames) {
                FrameHeader header = target.header(static_cast<FrameKind>(1 + random() % 17), random() % 2000,
                                                   random() % 3000, static_cast<uint8_t>(random()));
                header.ticket = static_cast<uint32_t>(random() % 4);
                header.capability = Capability{}; // nothing of it may ever be placed
                header.notify = static_cast<uint32_t>(random());
                header.page_bytes = static_cast<uint32_t>(random() % 64);
                header.status = static_cast<uint8_t>(random());
                header.reason = static_cast<uint8_t>(random());
                const size_t words = random() % 3;
                Bytes payload(random() % 4 == 0 ? header.page_bytes * words : random() % 300, 0xAA);
                std::vector<uint64_t> pages(words);
                for (uint64_t& page : pages) {
                    page = random() % 3 == 0 ? random() : random() % 10;
                }
                if (!target.peer.send(header, pages, payload)) {
                    break;
                }
            }
            target.peer.end_stream();
            CHECK(eventually([&] { return !target.side.lane->state().ok(); }));
            CHECK(same_bytes(target.side.get(*target.region), Bytes(target.region->nbytes(), 5)));
        }
    }
}

TEST_CASE("hostile: requests outside of the share are answered, and nothing is touched") {
    constexpr uint64_t kBytes = 1 << 20;
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device, kBytes);
            RawPeer& peer = target.peer;
            target.side.put(*target.region, Bytes(kBytes, 5));
            const Bytes payload(64, 0xAA);
            for (const uint64_t offset : {kBytes - 63, kBytes, kBytes + 1, UINT64_MAX, UINT64_MAX - 63}) {
                CAPTURE(offset);
                REQUIRE(peer.send(target.header(FrameKind::write, offset, 64, kLast), {}, payload));
                CHECK(peer.answer(7) == kBounds);
                REQUIRE(peer.send(target.header(FrameKind::read, offset, 64)));
                CHECK(peer.answer(7) == kBounds);
                REQUIRE(peer.send(target.header(FrameKind::fetch_add, offset), {1}));
                CHECK(peer.answer(7) ==
                      (offset == kBytes - 63 ? Outcome{Status::unsupported, Reason::misaligned} : kBounds));
            }
            for (const uint64_t nbytes : {kBytes + 1, UINT64_MAX, UINT64_MAX - 7}) {
                REQUIRE(peer.send(target.header(FrameKind::read, 8, nbytes)));
                CHECK(peer.answer(7) == kBounds);
            }
            // Page numbers whose product with the page size wraps around, or lies just outside.
            for (const uint64_t page :
                 {kBytes / 32, uint64_t{1} << 59, uint64_t{1} << 60, UINT64_MAX / 32, UINT64_MAX}) {
                CAPTURE(page);
                FrameHeader write = target.header(FrameKind::write_pages, 0, 64, kLast);
                write.page_bytes = 32;
                REQUIRE(peer.send(write, {0, page}, payload));
                CHECK(peer.answer(7) == kBounds);
                REQUIRE(peer.send(target.header(FrameKind::read_pages, 0, 32), {0, page}));
                CHECK(peer.answer(7) == kBounds);
            }
            REQUIRE(peer.send(target.header(FrameKind::read_pages, 0, UINT64_MAX / framed::kMaxTable), {0, 1}));
            CHECK(peer.answer(7) == kBounds);
            FrameHeader shifted = target.header(FrameKind::write_pages, 1, 64, kLast);
            shifted.page_bytes = 32;
            REQUIRE(peer.send(shifted, {0, kBytes / 32 - 1}, payload));
            CHECK(peer.answer(7) == kBounds);
            CHECK(target.side.lane->state().ok());
            CHECK(same_bytes(target.side.get(*target.region), Bytes(kBytes, 5)));
            REQUIRE(peer.send(target.header(FrameKind::write, 0, 64, kLast), {}, payload));
            CHECK(peer.answer(7) == kOk);
            CHECK(target.side.get(*target.region, 0, 64) == payload);
        }
    }
}

TEST_CASE("hostile: ranges outside of the share are answered, and nothing is touched") {
    constexpr uint64_t kBytes = 1 << 20;
    using Table = std::vector<uint64_t>; // offsets, then lengths
    const std::vector<std::pair<const char*, Table>> cases{
        {"the first", {kBytes - 31, 0, 32, 32}},
        {"the last", {0, kBytes - 31, 32, 32}},
        {"at the end", {0, kBytes, 32, 32}},
        {"an offset that wraps", {0, UINT64_MAX - 31, 32, 32}},
        {"an offset that wraps into the share", {0, UINT64_MAX - 15, 32, 32}},
        {"the highest offset", {0, UINT64_MAX, 63, 1}},
        {"a high bit", {0, uint64_t{1} << 63, 32, 32}},
    };
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device, kBytes);
            RawPeer& peer = target.peer;
            target.side.put(*target.region, Bytes(kBytes, 5));
            const Bytes payload(64, 0xAA);
            for (const auto& [what, table] : cases) {
                CAPTURE(std::string(what));
                FrameHeader write = target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify);
                REQUIRE(peer.send(write, table, payload));
                CHECK(peer.answer(7) == kBounds);
                // The same where the frame itself begins late in the share.
                Table moved = table;
                moved[0] -= 64;
                moved[1] -= 64;
                write.offset = 64;
                REQUIRE(peer.send(write, moved, payload));
                CHECK(peer.answer(7) == kBounds);
            }
            for (const uint64_t offset : {kBytes, kBytes + 1, UINT64_MAX, UINT64_MAX - 31}) {
                CAPTURE(offset);
                REQUIRE(peer.send(target.header(FrameKind::write_ranges, offset, 64, kLast), {0, 32, 32, 32}, payload));
                CHECK(peer.answer(7) == kBounds);
            }
            FrameHeader unknown = target.header(FrameKind::write_ranges, 0, 64, kLast);
            unknown.capability = {};
            REQUIRE(peer.send(unknown, {0, 32, 32, 32}, payload));
            CHECK(peer.answer(7).status == Status::access_denied);
            CHECK(target.side.lane->state().ok());
            CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
            CHECK(same_bytes(target.side.get(*target.region), Bytes(kBytes, 5)));
        }
    }
}

TEST_CASE("hostile: ranges that are not the payload end the lane") {
    const std::vector<std::pair<const char*, std::vector<uint64_t>>> cases{
        {"more", {0, 100, 32, 33}},
        {"fewer", {0, 100, 32, 31}},
        {"none", {0, 100, 64, 0}},
        {"none first", {0, 100, 0, 64}},
        {"a sum that wraps", {0, 100, UINT64_MAX, 65}},
        {"all that there is, twice", {0, 0, UINT64_MAX, UINT64_MAX}},
        {"outside of the share, too", {UINT64_MAX, 0, 1, 1}},
    };
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            for (const auto& [what, table] : cases) {
                CAPTURE(provider);
                CAPTURE(device);
                CAPTURE(std::string(what));
                Target target(provider, device);
                target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
                REQUIRE(target.peer.send(target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify), table,
                                         Bytes(64, 0xAA)));
                CHECK(target.ends_with(kMalformed));
                CHECK(same_bytes(target.side.get(*target.region), Bytes(target.region->nbytes(), 5)));
                CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
            }
        }
    }
}

TEST_CASE("hostile: ranges that overlap, and as many as a table has") {
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device);
            target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
            Bytes payload(64, 6);
            std::fill(payload.begin() + 32, payload.end(), uint8_t{7});
            REQUIRE(
                target.peer.send(target.header(FrameKind::write_ranges, 8, 64, kLast), {100, 110, 32, 32}, payload));
            CHECK(target.peer.answer(7) == kOk);
            const Bytes bytes = target.side.get(*target.region, 100, 60);
            CHECK(bytes[7] == 5);
            CHECK(bytes[8] == 6);
            CHECK(bytes[49] == 7);
            CHECK(bytes[50] == 5);
            constexpr size_t kMost = framed::kMaxTable / 2;
            std::vector<uint64_t> table(2 * kMost, 1);
            for (size_t i = 0; i < kMost; ++i) {
                table[i] = 4096 + 3 * i;
            }
            REQUIRE(target.peer.send(target.header(FrameKind::write_ranges, 0, kMost, kLast), table, Bytes(kMost, 9)));
            CHECK(target.peer.answer(7) == kOk);
            CHECK(target.side.get(*target.region, 4096 + 3 * (kMost - 1) - 1, 3) == Bytes{5, 9, 5});
        }
    }
}

TEST_CASE("hostile: ranges that are cut off place nothing beyond what has come") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        // In the table, and in the payload.
        for (const size_t nbytes : {size_t{8}, size_t{16 + 16}, size_t{32 + 40}}) {
            CAPTURE(nbytes);
            Target target(provider);
            target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
            FrameHeader header = target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify);
            header.table = 4;
            header.payload = 64;
            Bytes rest(32 + 64, 0xAA);
            const uint64_t table[] = {1000, 2000, 32, 32};
            std::memcpy(rest.data(), table, sizeof table);
            REQUIRE(target.peer.send_bytes(&header, sizeof header));
            REQUIRE(target.peer.send_bytes(rest.data(), nbytes));
            target.peer.end_stream();
            CHECK(eventually([&] { return !target.side.lane->state().ok(); }));
            CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
            Bytes expected(target.region->nbytes(), 5);
            Bytes found = target.side.get(*target.region);
            std::fill(found.begin() + 1000, found.begin() + 1032, uint8_t{5});
            std::fill(found.begin() + 2000, found.begin() + 2032, uint8_t{5});
            CHECK(same_bytes(found, expected));
            CHECK(eventually([&] { return target.region->pins() == 0; }));
        }
    }
}

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
        // Answered as a whole while the device still copies, and then once more.
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
        const auto data = [](Target& target, Asked& asked, uint64_t offset, size_t nbytes) {
            target.peer.send(reply(FrameKind::read_data, asked, offset, 0), {}, Bytes(nbytes, 0xAA));
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
        CHECK(target.side.get(*local, kBytes - 1, 1) == Bytes(1, 6)); // as the operation said: it was over
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
            send.kind = FrameKind::send;
            send.ticket = 3;
            send.arg = 100'000;
            Posted first = post(target.side, message(Kind::recv, buffer, 100'000));
            REQUIRE(target.peer.send(send));
            target.peer.receive(FrameKind::clear_to_send);
            REQUIRE(target.peer.send(send));
            // Half a frame of data, and then a second recv takes the same ticket.
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
            target.peer.send_bytes(half.data(), half.size()); // into nothing
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
            send.kind = FrameKind::send;
            send.ticket = 7;
            send.arg = 100'000;
            Posted recv = post(target.side, message(Kind::recv, buffer, 100'000));
            REQUIRE(target.peer.send(send));
            target.peer.receive(FrameKind::clear_to_send);
            target.peer.send(target.header(FrameKind::write, 0, 64, kLast), {}, Bytes(64, 1));
            CHECK(target.ends_with(kMalformed));
            CHECK(target.side.wait(recv.op).status == Status::protocol);
        }
    }
}

TEST_CASE("hostile: floods end the lane before they cost memory") {
    constexpr int kMany = 300'000;
    struct Flood {
        const char* what;
        int device;
        std::function<bool(Target&, int)> send;
    };
    const std::vector<Flood> floods{
        {"reads that nobody takes", kHostDevice,
         [](Target& t, int) { return t.peer.send(t.header(FrameKind::read, 0, 1 << 20)); }},
        {"refused writes whose answers nobody takes", kHostDevice,
         [](Target& t, int) { return t.peer.send(t.header(FrameKind::write, UINT64_MAX, 0, kLast)); }},
        {"refused pieces", kHostDevice,
         [](Target& t, int i) {
             FrameHeader header = t.header(FrameKind::write, UINT64_MAX, 0, 0);
             header.ticket = static_cast<uint32_t>(i);
             return t.peer.send(header);
         }},
        {"device writes that never end", kSimDevice,
         [](Target& t, int i) {
             FrameHeader header = t.header(FrameKind::write, 0, 2, 0);
             header.ticket = static_cast<uint32_t>(i);
             return t.peer.send(header, {}, Bytes(1, 1));
         }},
        {"device atomics", kSimDevice,
         [](Target& t, int) {
             t.side.sim->delay(0, 50 * kMillisecond, 0); // else they would end as fast as they come
             return t.peer.send(t.header(FrameKind::fetch_add), {1});
         }},
        {"notifications without credit", kHostDevice,
         [](Target& t, int) { return t.peer.send(t.header(FrameKind::notify, 0, 0, kNotify)); }},
        {"messages", kHostDevice,
         [](Target& t, int) { return t.peer.send(t.header(FrameKind::send, 0, 8192), {}, Bytes(8192, 1)); }},
    };
    for (const std::string& provider : kProviders) {
        for (const Flood& flood : floods) {
            CAPTURE(provider);
            CAPTURE(std::string(flood.what));
            Target target(provider, flood.device);
            int sent = 0;
            while (sent < kMany && flood.send(target, sent)) {
                ++sent;
            }
            CHECK(eventually([&] { return !target.side.lane->state().ok(); }));
            CHECK(target.side.lane->state().status == Status::protocol);
            target.side.sim->delay(0, 0, 0);
        }
    }
}

TEST_CASE("hostile: the stream ends in the middle of a frame") {
    const Outcome ended{Status::peer_lost, Reason::stream_closed};
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            for (const size_t nbytes : {0, 1, 63, 64, 64 + 10, 64 + 64}) {
                CAPTURE(provider);
                CAPTURE(nbytes);
                Target target(provider, device);
                const auto local = target.side.alloc(64);
                Asked asked = ask(target, Kind::write, local, 64);
                FrameHeader header = target.header(FrameKind::write, 0, 64, kLast);
                header.payload = 64;
                Bytes bytes(sizeof header + 64);
                std::memcpy(bytes.data(), &header, sizeof header);
                REQUIRE(target.peer.send_bytes(bytes.data(), nbytes));
                target.peer.end_stream();
                CHECK(target.ends_with(ended));
                CHECK(target.side.wait(asked.posted.op) == ended);
                const Posted late = post(target.side, request(Kind::notify, 0, 0, 0, 1));
                CHECK(late.what == Posted::What::failed);
                CHECK(late.outcome == ended);
                CHECK(eventually([&] { return target.region->pins() == 0 && local->pins() == 0; }));
            }
        }
    }
}

TEST_CASE("hostile: ring indices that cannot be") {
    const auto indices = [](int fd) {
        void* base = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        REQUIRE(base != MAP_FAILED);
        return static_cast<framed::RingIndices*>(base);
    };
    {
        Target target("shm");
        // The ring that the engine consumes: nothing but its tail is needed to lie.
        FrameHeader header = target.header(FrameKind::ping);
        REQUIRE(target.peer.send(header));
        framed::RingIndices* page = indices(target.peer.ring_fd());
        page->head.store(UINT64_MAX / 2); // of the ring that the engine fills
        const auto local = target.side.alloc(1 << 20);
        std::vector<Posted> writes;
        for (int i = 0; i < 3; ++i) {
            writes.push_back(post(target.side, target.route(local), request(Kind::write, 0, 0, 1 << 20)));
        }
        CHECK(target.ends_with(kMalformed));
        for (Posted& write : writes) {
            CHECK(target.side.wait(std::move(write)).status == Status::protocol);
        }
        ::munmap(page, 4096);
    }
}

TEST_CASE("hostile: a peer that never reads holds nobody up but itself") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Target target(provider);
        const auto local = target.side.alloc(8 << 20);
        const uint64_t route = target.route(local, 8 << 20);
        Posted write = post(target.side, route, request(Kind::write, 0, 0, 8 << 20, -1, now_ns() + kMillisecond));
        CHECK(target.side.wait(write.op) == kDeadline);
        CHECK(local->pins() != 0);
        target.side.engine->drop_peer(target.side.peer->id(), {Status::closed, Reason::user});
        CHECK(local->pins() == 0);
    }
}

TEST_CASE("hostile: a stopped peer takes no staging buffers from the lanes of others") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Side side;
        const auto local = side.alloc(3 << 20, kSimDevice);
        // Each of these has more to send, and more to receive, than all the staging buffers hold, and never goes on.
        std::vector<std::unique_ptr<RawPeer>> stopped;
        std::vector<Posted> ops;
        for (int i = 0; i < 3; ++i) {
            stopped.push_back(std::make_unique<RawPeer>(side, provider));
            Route route;
            route.endpoint = side.lane;
            route.local = local;
            route.capability = kCapability;
            route.remote_nbytes = 3 << 20;
            route.rights = kReadWrite;
            const uint64_t id = side.engine->add_route(route);
            for (int j = 0; j < 8; ++j) {
                ops.push_back(post(side, id, request(Kind::write, 0, 0, 3 << 20)));
            }
        }
        // Another peer's lane moves all the same.
        Side other;
        introduce(side, other);
        connect(side, other, provider);
        const auto remote = other.alloc(3 << 20);
        Route route;
        route.endpoint = side.lane;
        route.local = local;
        route.share = other.engine->shares().add(remote, 0, 3 << 20, kReadWrite, kCapability);
        route.capability = kCapability;
        route.remote_nbytes = 3 << 20;
        route.rights = kReadWrite;
        const uint64_t id = side.engine->add_route(route);
        CHECK(run(side, id, request(Kind::write, 0, 0, 3 << 20, -1, now_ns() + 5 * kSecond)) == kOk);
        CHECK(run(side, id, request(Kind::read, 0, 0, 3 << 20, -1, now_ns() + 5 * kSecond)) == kOk);
        side.close();
        other.close();
        for (Posted& op : ops) {
            CHECK(op.op->status() == Status::closed);
        }
    }
}
