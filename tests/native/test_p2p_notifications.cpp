// Tests notifications that devices write into a peer's rings: their order, full rings, and peers with a wrong page.
#include "base/pages.hpp"
#include "p2p_fixture.hpp"
#include "provider/framed/frame.hpp"

#include <fcntl.h>

namespace test_p2p_notifications {

using namespace zerohop;
using namespace zerohop::test;
namespace framed = zerohop::framed;
using zerohop::p2p::kRings;
using zerohop::p2p::kSlots;
using zerohop::p2p::NotifyInbox;
using zerohop::p2p::NotifyMemory;
using zerohop::p2p::NotifyOutbox;
using zerohop::p2p::NotifyPage;

namespace {

constexpr uint32_t kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Returns all notifications that have come by now, in their order.
std::vector<std::pair<uint32_t, uint64_t>> drained(NotifyInbox& inbox) {
    std::vector<std::pair<uint32_t, uint64_t>> found;
    while (inbox.drain([&](uint32_t value, uint64_t nbytes) { found.emplace_back(value, nbytes); }) != 0) {
    }
    return found;
}

// Writes the word as the device does.
void write(const accel::Word& word) {
    accel::test::store(*reinterpret_cast<uint32_t*>(word.address), word.value);
}

struct Rings {
    NotifyInbox inbox;
    Accelerators none{{}};
    NotifyOutbox outbox{none, inbox.fd()};
    NotifyMemory page{inbox.fd()}; // a hostile peer's view of the page
};

} // namespace

TEST_CASE("notify ring: many laps, in order, and never more than it holds") {
    Rings rings;
    uint32_t next = 0;
    uint32_t seen = 0;
    for (int lap = 0; lap < 4; ++lap) {
        for (uint32_t i = 0; i < kSlots; ++i, ++next) {
            const NotifyOutbox::Ticket ticket = rings.outbox.take(3, next, 10ULL * next);
            REQUIRE(ticket.slot != nullptr);
            CHECK(rings.inbox.any() == (i != 0)); // it counts only once the word is written
            write(ticket.word());
        }
        CHECK(rings.outbox.take(3, 0, 0).slot == nullptr);
        CHECK(rings.outbox.take(4, 7, 8).slot != nullptr); // another ring has its own room
        for (const auto& [value, nbytes] : drained(rings.inbox)) {
            CHECK(value == seen);
            CHECK(nbytes == 10ULL * seen);
            ++seen;
        }
        CHECK(seen == next);
        CHECK_FALSE(rings.inbox.any());
    }
}

TEST_CASE("notify ring: what was taken first is seen first, and what is skipped counts for nothing") {
    Rings rings;
    const NotifyOutbox::Ticket first = rings.outbox.take(0, 1, 10);
    const NotifyOutbox::Ticket second = rings.outbox.take(0, 2, 20);
    const NotifyOutbox::Ticket third = rings.outbox.take(0, 3, 30);
    write(third.word());
    CHECK(drained(rings.inbox).empty());
    write(second.word());
    CHECK_FALSE(rings.inbox.any());
    first.skip();
    CHECK(drained(rings.inbox) == std::vector<std::pair<uint32_t, uint64_t>>{{2, 20}, {3, 30}});
    // A notification that was written counts, even if it is skipped later.
    const NotifyOutbox::Ticket fourth = rings.outbox.take(0, 4, 40);
    write(fourth.word());
    fourth.skip();
    CHECK(drained(rings.inbox) == std::vector<std::pair<uint32_t, uint64_t>>{{4, 40}});
}

TEST_CASE("notify ring: which queue is told goes beside the length") {
    Rings rings;
    constexpr uint64_t kLongest = (uint64_t{1} << p2p::kLengthBits) - 1;
    std::vector<std::pair<int64_t, uint64_t>> sent;
    for (const uint16_t queue : {0, 1, 255, 256, 0x8000, 0xFFFE}) {
        for (const uint64_t nbytes : {uint64_t{0}, uint64_t{1} << 32, kLongest}) {
            sent.emplace_back(notify_of(queue, 0xFFFF'FFF0U + queue), nbytes);
            write(rings.outbox.take(2, sent.back().first, nbytes).word());
        }
    }
    std::vector<std::pair<int64_t, uint64_t>> found;
    rings.inbox.drain([&](int64_t notify, uint64_t nbytes) { found.emplace_back(notify, nbytes); });
    CHECK(found == sent);
}

TEST_CASE("notify ring: a peer that writes nonsense is read within bounds") {
    Rings rings;
    NotifyPage& page = rings.page.page();
    page.used.store(UINT32_MAX); // more rings than exist
    CHECK_FALSE(rings.inbox.any());
    for (auto& ring : page.rings) {
        for (auto& slot : ring) {
            slot.value = 5;
            slot.ready.store(1);
        }
    }
    CHECK(rings.inbox.any());
    // At most a ring's worth is drained at a time, so that a liar holds nobody up.
    size_t count = 0;
    CHECK(rings.inbox.drain([&](uint32_t, uint64_t) { ++count; }) == kSlots);
    CHECK(drained(rings.inbox).size() == size_t{kRings - 1} * kSlots);
    CHECK_FALSE(rings.inbox.any()); // the words of one lap do not count in the next
    // Only the owner's copy of the heads counts: false heads in the page cost the peer room, and nothing here.
    for (auto& head : page.heads) {
        head.store(UINT64_MAX / 2);
    }
    CHECK(drained(rings.inbox).empty());
    CHECK(rings.outbox.take(0, 1, 1).slot == nullptr);
}

TEST_CASE("notify ring: a page that is not what it should be is refused, and the lane with it") {
    Pair pair("shm");
    const auto lane = pair.a.engine->add_endpoint("p2p", pair.a.peer->id());
    const auto theirs = pair.b.engine->add_endpoint("p2p", pair.b.peer->id());
    const Address good = theirs->address();
    REQUIRE(good.fds.size() == 2);
    const int before = accel::test::open_descriptors();
    const auto refused = [&](std::vector<int> fds) {
        try {
            lane->connect({"", std::move(fds)});
        } catch (const NativeError& error) {
            return error.outcome();
        }
        return kOk;
    };
    const Descriptor small = make_memfd("small", sizeof(NotifyPage) - 4096, kSeals);
    const Descriptor large = make_memfd("large", sizeof(NotifyPage) + 4096, kSeals);
    const Descriptor open = make_memfd("unsealed", sizeof(NotifyPage), 0);
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const Descriptor reads(ends[0]);
    const Descriptor writes(ends[1]);
    for (const int wrong : {small.get(), large.get(), open.get(), writes.get(), good.fds[0]}) {
        CHECK(refused({good.fds[0], wrong}) == kMalformed);
    }
    CHECK_FALSE(refused({good.fds[0], -1}).ok());
    CHECK_FALSE(refused({good.fds[0]}).ok());
    CHECK_FALSE(refused({}).ok());
    CHECK_FALSE(refused({good.fds[0], good.fds[1], good.fds[1]}).ok());
    CHECK(accel::test::open_descriptors() == before + 5);  // the descriptors above
    CHECK_FALSE(refused({good.fds[1], good.fds[1]}).ok()); // the notification memory is not a ring
}

TEST_CASE("p2p: notified writes are told in their order, many times around the ring") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    constexpr uint32_t kCount = 3 * kSlots + 17;
    Posted last;
    for (uint32_t i = 0; i < kCount; ++i) {
        last = post(pair.a, reach.route, request(Kind::write, 0, i % 64, 1 + i % 64, i));
        REQUIRE(last.what == Posted::What::posted);
    }
    CHECK(pair.a.wait(last) == kOk);
    for (uint32_t i = 0; i < kCount; ++i) {
        const Notification note = notification(pair.b);
        REQUIRE(note.value == i);
        REQUIRE(note.nbytes == 1 + i % 64);
        CHECK(note.peer == pair.b.peer->id());
    }
}

TEST_CASE("p2p: the data is there when its notification is") {
    Pair pair("p2p");
    constexpr size_t kBytes = 300 << 10; // each has a large copy and a small one, and so uses two rings
    const Reach reach = reach_directly(pair, 2 * kBytes, kSimDevice, kHostDevice);
    for (unsigned round = 0; round < 20; ++round) {
        const Bytes bytes = pattern(2 * kBytes, round);
        pair.a.put(*reach.local, bytes);
        REQUIRE(post(pair.a, reach.route, request(Kind::write, 0, 0, kBytes, 1)).what == Posted::What::posted);
        REQUIRE(post(pair.a, reach.route, request(Kind::write, kBytes, kBytes, 100, 2)).what == Posted::What::posted);
        for (int i = 0; i < 2; ++i) {
            const Notification note = notification(pair.b);
            const size_t offset = note.value == 1 ? 0 : kBytes;
            CHECK(note.nbytes == (note.value == 1 ? kBytes : 100));
            const auto from = bytes.begin() + static_cast<ptrdiff_t>(offset);
            CHECK(same_bytes(pair.b.get(*reach.remote, offset, note.nbytes),
                             Bytes(from, from + static_cast<ptrdiff_t>(note.nbytes))));
        }
    }
}

TEST_CASE("p2p: a full ring is back-pressure, and goes on when the peer takes something out") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    {
        const Stopped stopped(pair.b);
        for (uint32_t i = 0; i < kSlots; ++i) {
            REQUIRE(post(pair.a, reach.route, request(Kind::write, 0, 0, 1, i), true).what == Posted::What::posted);
        }
        const Posted full = post(pair.a, reach.route, request(Kind::write, 0, 0, 1, 0), true);
        CHECK(full.what == Posted::What::retry);
        CHECK(full.outcome == Outcome{Status::would_block, Reason::no_credit});
        // A write without a notification needs no room.
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 1)) == kOk);
    }
    CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 1, kSlots)) == kOk);
    for (uint32_t i = 0; i <= kSlots; ++i) {
        REQUIRE(notification(pair.b).value == i);
    }
}

TEST_CASE("p2p: a write that fails is not announced, and those after it are") {
    Pair pair("p2p");
    const Reach reach = reach_directly(pair, 4096, kSimDevice, kSimDevice);
    for (uint32_t round = 0; round < 3; ++round) {
        pair.a.sim->inject(0, accel::SimFault::copy, 1);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 4096, 100)).status == Status::device_error);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 4096, round)) == kOk);
        CHECK(notification(pair.b).value == round);
    }
}

TEST_CASE("p2p: a peer that announces one more than it was granted loses its lane") {
    Pair pair("p2p");
    NotifyMemory memory(pair.b.lane->address().fds[1]); // b's memory, into which a writes
    NotifyPage& page = memory.page();
    constexpr uint32_t kFull = framed::kCredits / kSlots;
    static_assert(kFull < kRings && framed::kCredits % kSlots == 0);
    for (uint32_t ring = 0; ring < kFull; ++ring) {
        for (auto& slot : page.rings[ring]) {
            slot.nbytes = 1;
            slot.ready.store(1, std::memory_order_seq_cst);
        }
    }
    page.used.store(kFull + 1);
    pair.a.peer->presence()->wake();
    CHECK(eventually([&] { return page.heads[kFull - 1].load() == kSlots; }));
    pair.b.sync();
    CHECK(pair.b.lane->state().ok());
    page.rings[kFull][0].ready.store(1, std::memory_order_seq_cst);
    pair.a.peer->presence()->wake();
    CHECK(eventually([&] { return !pair.b.lane->state().ok(); }));
    CHECK(pair.b.lane->state() == Outcome{Status::protocol, Reason::no_credit});
}

} // namespace test_p2p_notifications
