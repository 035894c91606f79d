// Tests transfers of memory whose bytes another library has moved elsewhere: none of them ends well.
#include "engine_fixture.hpp"
#include "p2p_fixture.hpp"
#include "provider/framed/tuning.hpp"
#include "verbs_fixture.hpp"

#include <optional>

namespace test_block_watch {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = 1 << 20;

// Holds bytes, and the word in which a library keeps their address.
struct Block {
    std::vector<std::byte> bytes = std::vector<std::byte>(kBytes);
    uint64_t address = reinterpret_cast<uint64_t>(bytes.data());
    std::shared_ptr<Region> region = Region::wrap(address, kBytes, kHostDevice, -1, 0, false,
                                                  BlockWatch(reinterpret_cast<uint64_t>(&address), address));

    void move() { __atomic_store_n(&address, address + 64, __ATOMIC_RELAXED); }
};

// Every size takes another way: inline, small, in one piece, in many.
const std::vector<uint64_t> kSizes{1, 8, 200, 4096, 100'000, kBytes};

void expect(const Side& side, uint64_t route, Outcome outcome) {
    for (const Kind kind : {Kind::write, Kind::read}) {
        for (const uint64_t nbytes : kSizes) {
            CAPTURE(nbytes);
            CHECK(run(side, route, request(kind, 0, 0, nbytes)) == outcome);
        }
        CHECK(run(side, route, page_request(kind, {0, 3, 1}, {1, 2, 7}, 4096)) == outcome);
    }
}

} // namespace

TEST_CASE("block watch: local bytes that have moved, over every path") {
    struct Way {
        std::string provider;
        bool mapped;
    };
    for (const Way& way : {Way{"shm", false}, Way{"shm", true}, Way{"tcp", false}, Way{"tls", false}}) {
        CAPTURE(way.provider);
        CAPTURE(way.mapped);
        Block block;
        Pair pair(way.provider);
        Reach reach;
        reach.local = block.region;
        reach.remote = pair.b.alloc(kBytes);
        pair.share(reach, way.mapped, kReadWrite);
        expect(pair.a, reach.route, kOk);
        block.move();
        expect(pair.a, reach.route, kLocalMoved);
    }
}

TEST_CASE("block watch: bytes of the owner that have moved are not touched") {
    for (const char* provider : {"shm", "tcp", "tls", "flows"}) {
        CAPTURE(provider);
        Block block;
        Pair pair(provider);
        Reach reach;
        reach.local = pair.a.alloc(kBytes);
        reach.remote = block.region;
        pair.share(reach, false, kReadWrite);
        expect(pair.a, reach.route, kOk);
        pair.a.put(*reach.local, Bytes(kBytes, 7));
        const Bytes before = pair.b.get(*block.region);
        block.move();
        expect(pair.a, reach.route, kMoved);
        CHECK(run(pair.a, reach.route, request(Kind::fetch_add, 0, 0, 8)) == kMoved);
        CHECK(same_bytes(pair.b.get(*block.region), before));
    }
}

TEST_CASE("block watch: a write that was announced before its bytes moved has its credit from the peer alone") {
    for (const char* provider : {"shm", "tcp", "flows"}) {
        CAPTURE(provider);
        Pair pair(provider);
        Block block;
        Reach reach;
        reach.local = block.region;
        reach.remote = pair.b.alloc(kBytes);
        pair.share(reach, false, kReadWrite);
        const Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 0, 8, 7));
        block.move();
        (void)pair.a.wait(posted); // whether this side sees the move in time is not certain
        Posted told;
        do {
            told = post(pair.a, request(Kind::notify, 0, 0, 0, 1), true);
        } while (told.what != Posted::What::retry && pair.a.wait(told).ok());
        CHECK(told.outcome == Outcome{Status::would_block, Reason::no_credit});
        uint32_t heard = 0;
        while (pair.b.engine->pop_notification(0, 0, 0, false).has_value()) {
            ++heard;
        }
        CHECK(heard <= framed::kCredits); // never more than were granted
        CHECK(pair.b.lane->state().ok());
    }
}

TEST_CASE("block watch: messages from and into bytes that have moved") {
    for (const char* provider : {"shm", "tcp", "flows"}) {
        for (const uint64_t nbytes : {uint64_t{100}, uint64_t{5000}, uint64_t{kBytes}}) {
            CAPTURE(provider);
            CAPTURE(nbytes);
            Pair pair(provider);
            Block source;
            Block target;
            const Posted waiting = post(pair.b, message(Kind::recv, target.region, nbytes));
            target.move();
            CHECK(pair.b.wait(post(pair.b, message(Kind::recv, target.region, nbytes))) == kLocalMoved);
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source.region, nbytes))) == kMoved);
            CHECK(pair.b.wait(waiting) == kLocalMoved);
            source.move();
            CHECK(pair.a.wait(post(pair.a, message(Kind::send, source.region, nbytes))) == kLocalMoved);
        }
    }
}

TEST_CASE("block watch: bytes that move while a copy is under way") {
    Block block;
    Pair pair("shm");
    Reach reach;
    reach.local = block.region;
    reach.remote = pair.b.alloc(kBytes);
    pair.share(reach, true, kReadWrite);
    for (const Kind kind : {Kind::write, Kind::read}) {
        std::optional<Stopped> nobody_polls(pair.a);
        const Posted copying = post(pair.a, reach.route, request(kind, 0, 0, kBytes));
        REQUIRE(copying.what == Posted::What::posted);
        block.move();
        nobody_polls.reset();
        CHECK(pair.a.wait(copying) == kLocalMoved);
        block.address = reinterpret_cast<uint64_t>(block.bytes.data());
    }
}

TEST_CASE("block watch: what devices and NICs copy") {
    Block block;
    {
        Pair pair("p2p");
        Reach reach;
        reach.local = block.region;
        reach.remote = pair.b.alloc(kBytes, kSimDevice);
        reach.share = pair.b.engine->shares().add(reach.remote, 0, kBytes, kReadWrite, kCapability);
        Route route = pair.route(reach, kBytes);
        const auto memory = import_from(pair, *reach.remote);
        route.access =
            std::make_shared<p2p::DeviceAccess>(memory, memory->reach(pair.a.engine->accelerators(), *reach.local));
        reach.route = pair.a.engine->add_route(std::move(route));
        expect(pair.a, reach.route, kOk);
        {
            HeldStream held(pair.a);
            const Posted copying = post(pair.a, reach.route, after(held, request(Kind::write, 0, 0, 4096)));
            block.move();
            held.let_go(); // the device ends well
            CHECK(pair.a.wait(copying) == kLocalMoved);
        }
        expect(pair.a, reach.route, kLocalMoved);
    }
    block.address = reinterpret_cast<uint64_t>(block.bytes.data());
    VerbsPair pair;
    Reach reach;
    reach.local = block.region;
    reach.remote = pair.b.alloc(kBytes);
    reach.share = pair.b.engine->shares().add(reach.remote, 0, kBytes, kReadWrite, kCapability);
    pair.route(reach);
    expect(pair.a, reach.route, kOk);
    for (const uint64_t nbytes : {uint64_t{4096}, uint64_t{kBytes}}) {
        std::optional<Stopped> nobody_polls(pair.a);
        const Posted copying = post(pair.a, reach.route, request(Kind::read, 0, 0, nbytes));
        block.move();
        nobody_polls.reset();
        CHECK(pair.a.wait(copying) == kLocalMoved);
        block.address = reinterpret_cast<uint64_t>(block.bytes.data());
    }
    block.move();
    expect(pair.a, reach.route, kLocalMoved);
}

} // namespace test_block_watch
