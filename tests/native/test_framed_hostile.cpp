// Tests a peer that lies: its frames are refused or end the lane, and never cost more than the lane.
#include "raw_peer.hpp"

#include <atomic>
#include <random>
#include <sys/mman.h>

namespace test_framed_hostile {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Sends so many requests whose answers the peer does not read, or as many as the lane takes; returns how many were
// carried out.
uint64_t add_ones(Target& target, uint64_t count) {
    // The target adds while this looks.
    const std::atomic_ref word(*reinterpret_cast<uint64_t*>(target.region->address()));
    const auto added = [&] { return word.load(std::memory_order_acquire); };
    target.side.put(*target.region, Bytes(sizeof(uint64_t), 0));
    uint64_t sent = 0;
    while (sent < count && target.peer.send(target.header(FrameKind::fetch_add), {1})) {
        ++sent;
    }
    CHECK(eventually([&] { return added() == sent || !target.side.lane->state().ok(); }));
    return added();
}

} // namespace

TEST_CASE("hostile: frames that nobody sends end the lane") {
    struct Case {
        const char* what;
        std::function<void(FrameHeader&)> change; // changes the header of a write of no bytes
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
        {"no ranges to read", [](FrameHeader& h) { h.kind = FrameKind::read_ranges; }},
        {"ranges to read without lengths", [](FrameHeader& h) { h.kind = FrameKind::read_ranges, h.table = 3; }},
        {"read_ranges with payload",
         [](FrameHeader& h) { h.kind = FrameKind::read_ranges, h.table = 2, h.payload = 1; }},
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
                header.capability = Capability{}; // so that no byte of it may be placed
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
            // The product of these page numbers with the page size wraps around, or lies just outside.
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
             t.side.sim->delay(0, 50 * kMillisecond, 0); // otherwise they would end as fast as they come
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

TEST_CASE("hostile: credits for a peer that reads nothing are not queued without end") {
    // Over shm, because a ring takes the same number of answers each time; what a socket takes is up to the kernel.
    uint64_t most = 0;
    {
        Target target("shm");
        // The lane ends with the first answer that it has no room for, whose request has been carried out.
        most = add_ones(target, UINT64_MAX) - 1;
        CHECK(target.ends_with({Status::protocol, Reason::window_full}));
        CHECK(most > framed::kMaxAnswers);
    }
    // One answer less fits. Then come notifications that want none, so that only credits are queued for them.
    const auto full = [&](Target& target) {
        REQUIRE(add_ones(target, most) == most);
        REQUIRE(target.side.lane->state().ok());
    };
    const auto notify = [](Target& target) {
        return target.peer.send(target.header(FrameKind::notify, 0, 0, kNotify));
    };
    {
        Target target("shm");
        full(target);
        REQUIRE(notify(target));
        CHECK(target.ends_with({Status::protocol, Reason::window_full}));
        CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
    }
    { // A peer that has fallen behind as far, and reads, loses nothing.
        Target target("shm");
        full(target);
        for (uint64_t i = 0; i < most; ++i) {
            REQUIRE(target.peer.answer(7) == kOk);
        }
        for (uint32_t i = 0; i < 2 * framed::kCreditBatch; ++i) {
            REQUIRE(notify(target));
            notification(target.side);
        }
        CHECK(target.side.lane->state().ok());
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
        // This is the ring that the engine consumes: to lie, the peer needs only its tail.
        FrameHeader header = target.header(FrameKind::ping);
        REQUIRE(target.peer.send(header));
        framed::RingIndices* page = indices(target.peer.ring_fd());
        page->head.store(UINT64_MAX / 2); // head of the ring that the engine fills
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
        // Each peer has more to send, and more to receive, than all the staging buffers hold, and never goes on.
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
        // Another peer's lane makes progress all the same.
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
        CHECK(run(side, id, request(Kind::write, 0, 0, 3 << 20, -1, soon())) == kOk);
        CHECK(run(side, id, request(Kind::read, 0, 0, 3 << 20, -1, soon())) == kOk);
        side.close();
        other.close();
        for (Posted& op : ops) {
            CHECK(op.op->status() == Status::closed);
        }
    }
}

} // namespace test_framed_hostile
