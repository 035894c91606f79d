// Tests revocation: after revoke() has returned true, no byte of the share moves any more, whatever was under way.
#include "raw_peer.hpp"

namespace test_framed_revoke {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = 4 << 20;

} // namespace

TEST_CASE("revoke: during streaming writes") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        for (const int remote : {kHostDevice, kSimDevice}) {
            for (const bool paged : {false, true}) {
                CAPTURE(provider);
                CAPTURE(remote);
                CAPTURE(paged);
                Pair pair(provider);
                for (int round = 0; round < 6; ++round) {
                    Reach reach = pair.reach(kBytes, kHostDevice, remote);
                    pair.a.put(*reach.local, Bytes(kBytes, 1));
                    std::atomic<int> through{0};
                    std::jthread writer([&] {
                        std::vector<uint64_t> pages(kBytes / 4096);
                        for (size_t i = 0; i < pages.size(); ++i) {
                            pages[i] = i;
                        }
                        for (;;) {
                            const Outcome outcome = run(pair.a, reach.route,
                                                        paged ? page_request(Kind::write, pages, pages, 4096)
                                                              : request(Kind::write, 0, 0, kBytes));
                            if (!outcome.ok()) {
                                CHECK(outcome == kRevoked);
                                return;
                            }
                            through.fetch_add(1);
                        }
                    });
                    REQUIRE(eventually([&] { return through.load() >= round % 3; }));
                    REQUIRE(pair.b.engine->revoke(reach.share, soon()));
                    pair.b.put(*reach.remote, Bytes(kBytes, 2));
                    writer.join();
                    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 100)) == kRevoked);
                    CHECK(same_bytes(pair.b.get(*reach.remote), Bytes(kBytes, 2)));
                    CHECK(pair.b.engine->revoke(reach.share, soon())); // revoking twice succeeds
                    CHECK(eventually([&] { return reach.remote->pins() == 0; }));
                }
            }
        }
    }
}

TEST_CASE("revoke: during streaming reads, also when the target's own threads are posting") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        for (const int remote : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(remote);
            Pair pair(provider);
            for (int round = 0; round < 6; ++round) {
                Reach reach = pair.reach(kBytes, kHostDevice, remote);
                pair.b.put(*reach.remote, Bytes(kBytes, 1));
                pair.a.put(*reach.local, Bytes(kBytes, 0));
                std::atomic<int> through{0};
                std::atomic<bool> stop{false};
                std::jthread reader([&] {
                    for (;;) {
                        const Outcome outcome = run(pair.a, reach.route, request(Kind::read, 0, 0, kBytes));
                        if (!outcome.ok()) {
                            CHECK(outcome == kRevoked);
                            return;
                        }
                        CHECK(same_bytes(pair.a.get(*reach.local), Bytes(kBytes, 1)));
                        through.fetch_add(1);
                    }
                });
                // each post sends everything that the lane has, which includes answers to reads
                std::jthread poster([&] {
                    while (!stop.load()) {
                        CHECK(pair.b.wait(post(pair.b, request(Kind::notify, 0, 0, 0, 1))) == kOk);
                        static_cast<void>(notification(pair.a));
                    }
                });
                REQUIRE(eventually([&] { return through.load() >= 1 + round % 3; }));
                REQUIRE(pair.b.engine->revoke(reach.share, soon()));
                pair.b.put(*reach.remote, Bytes(kBytes, 0xAA)); // a secret
                reader.join();
                stop.store(true);
                poster.join();
                const Bytes got = pair.a.get(*reach.local);
                CHECK(std::find(got.begin(), got.end(), 0xAA) == got.end());
                CHECK(eventually([&] { return reach.remote->pins() == 0; }));
            }
        }
    }
}

TEST_CASE("revoke: a read that has been answered in part never ends well") {
    constexpr uint32_t reads = 60; // more than any lane buffers
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int device : {kHostDevice, kSimDevice}) {
            for (const size_t nbytes : {size_t{3000}, size_t{200'000}}) {
                CAPTURE(provider);
                CAPTURE(device);
                CAPTURE(nbytes);
                Target target(provider, device);
                const Bytes all(target.region->nbytes(), 1);
                target.side.put(*target.region, all);
                for (uint32_t ticket = 0; ticket < reads; ++ticket) {
                    FrameHeader header = target.header(FrameKind::read, 0, nbytes);
                    header.ticket = ticket;
                    REQUIRE(target.peer.send(header));
                }
                // Takes the first answer, so that the lane is full of the others when the memory goes.
                std::vector<Bytes> got(reads);
                uint32_t ended = 0;
                const auto take = [&] {
                    const FrameHeader header = target.peer.receive();
                    Bytes& bytes = got.at(header.ticket);
                    bytes.insert(bytes.end(), target.peer.payload.begin(), target.peer.payload.end());
                    if (header.has(kLast)) {
                        ++ended;
                        const Outcome outcome{static_cast<Status>(header.status), static_cast<Reason>(header.reason)};
                        CHECK((outcome == kRevoked || outcome == kOk));
                        CHECK((!outcome.ok() || same_bytes(bytes, Bytes(nbytes, 1))));
                    }
                };
                while (ended == 0) {
                    take();
                }
                REQUIRE(target.side.engine->revoke(target.share, soon()));
                while (ended < reads) {
                    take();
                }
                target.side.close();
            }
        }
    }
}

TEST_CASE("revoke: atomics in flight end one way or the other") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        for (const int remote : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(remote);
            Pair pair(provider);
            Reach reach = pair.reach(64, kHostDevice, remote);
            pair.b.put(*reach.remote, Bytes(64, 0));
            std::vector<Posted> ops;
            for (int i = 0; i < 200; ++i) {
                Request r = request(Kind::fetch_add, 0, 0, 8);
                r.operand = 1;
                ops.push_back(post(pair.a, reach.route, r));
            }
            REQUIRE(pair.b.engine->revoke(reach.share, soon()));
            const uint8_t counted = pair.b.get(*reach.remote, 0, 1)[0];
            int succeeded = 0;
            for (Posted& op : ops) {
                const Outcome outcome = pair.a.wait(std::move(op));
                CHECK((outcome == kOk || outcome == kRevoked));
                succeeded += outcome.ok() ? 1 : 0;
            }
            CHECK(succeeded == counted);
            CHECK(pair.b.get(*reach.remote, 0, 1)[0] == counted);
        }
    }
}

TEST_CASE("revoke: does not wait for a peer that stopped in the middle of a write") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int device : {kHostDevice, kSimDevice}) {
            for (const bool within_frame : {false, true}) {
                CAPTURE(provider);
                CAPTURE(device);
                CAPTURE(within_frame);
                Target target(provider, device);
                target.side.put(*target.region, Bytes(target.region->nbytes(), 0));
                FrameHeader header = target.header(FrameKind::write, 0, 1 << 20);
                header.ticket = 1;
                REQUIRE(target.peer.send(header, {}, Bytes(200'000, 1)));
                header.ticket = 2; // another write, complete: once it is answered, the first piece has been placed
                header.flags = kLast;
                header.offset = 300'000;
                REQUIRE(target.peer.send(header, {}, Bytes(64, 1)));
                CHECK(target.peer.answer(2) == kOk);
                header.ticket = 1;
                header.flags = 0;
                header.offset = 200'000;
                header.payload = 50'000;
                const Bytes part(20'000, 1);
                if (within_frame) {
                    REQUIRE(target.peer.send_bytes(&header, sizeof header));
                    REQUIRE(target.peer.send_bytes(part.data(), part.size()));
                }
                CHECK(target.side.engine->revoke(target.share, soon()));
                target.side.put(*target.region, Bytes(target.region->nbytes(), 2));
                // Then it goes on.
                if (within_frame) {
                    REQUIRE(target.peer.send_bytes(Bytes(30'000, 1).data(), 30'000));
                } else {
                    REQUIRE(target.peer.send(header, {}, Bytes(50'000, 1)));
                }
                const FrameHeader ack = target.peer.receive(FrameKind::ack);
                CHECK(static_cast<Reason>(ack.reason) == Reason::revoked);
                header.flags = kLast;
                REQUIRE(target.peer.send(header, {}, Bytes(64, 1)));
                CHECK(target.peer.answer(1) == kRevoked);
                CHECK(same_bytes(target.side.get(*target.region), Bytes(target.region->nbytes(), 2)));
                CHECK(eventually([&] { return target.region->pins() == 0; }));
            }
        }
    }
}

TEST_CASE("revoke: waits for the device's copies, and says so when they take too long") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        CAPTURE(provider);
        Pair pair(provider);
        Reach reach = pair.reach(256 * 1024, kHostDevice, kSimDevice);
        pair.b.sim->delay(0, 0, 1); // the copy takes a quarter of a second
        Posted write = post(pair.a, reach.route, request(Kind::write, 0, 0, 256 * 1024));
        const std::shared_ptr<Region> remote = reach.remote;
        REQUIRE(eventually([&] { return remote->pins() != 0; }));
        const uint64_t id = reach.share.packed();
        if (!pair.b.engine->revoke(ShareId::unpack(id), now_ns() + kMillisecond)) {
            CHECK(pair.b.engine->revoke(ShareId::unpack(id), soon())); // a second call waits again
        }
        pair.b.sim->delay(0, 0, 0);
        pair.b.put(*reach.remote, Bytes(256 * 1024, 2));
        const Outcome outcome = pair.a.wait(std::move(write));
        CHECK((outcome == kOk || outcome == kRevoked));
        CHECK(same_bytes(pair.b.get(*reach.remote), Bytes(256 * 1024, 2)));
    }
}

} // namespace test_framed_revoke
