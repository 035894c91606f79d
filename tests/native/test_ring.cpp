// Tests the ring of bytes in shared memory: wrapping, full, two threads, and a peer that writes nonsense into it.
#include "base/guarded.hpp"
#include "base/pages.hpp"
#include "engine_fixture.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/ring.hpp"

#include <fcntl.h>
#include <poll.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>

namespace test_ring {

using namespace zerohop;
using namespace zerohop::framed;
using namespace zerohop::test;

namespace {

// Both ends of a ring, and the raw indices as a hostile peer sees them.
struct Ring {
    Ring() : producer(consumer.fd()), peer(consumer.fd()) {}
    RingIndices& indices() const { return peer.indices(); }

    size_t send(const Bytes& bytes, size_t from = 0, size_t nbytes = SIZE_MAX) {
        nbytes = std::min(nbytes, bytes.size() - from);
        const iovec piece{const_cast<uint8_t*>(bytes.data()) + from, nbytes};
        return producer.send({&piece, 1}, nullptr);
    }
    Bytes receive(size_t limit) {
        Bytes bytes(limit);
        const iovec piece{bytes.data(), limit};
        bytes.resize(consumer.receive({&piece, 1}, false, nullptr));
        return bytes;
    }

    RingConsumer consumer;
    RingProducer producer;
    RingMemory peer;
};

} // namespace

TEST_CASE("ring: full, empty, and whole again") {
    Ring ring;
    CHECK(ring.producer.has_room());
    CHECK_FALSE(ring.consumer.has_data());
    CHECK(ring.receive(10).empty());
    const Bytes bytes = pattern(kRingBytes + 5, 1);
    CHECK(ring.send(bytes) == kRingBytes);
    CHECK_FALSE(ring.producer.has_room());
    CHECK(ring.send(bytes, kRingBytes) == 0);
    CHECK(ring.consumer.has_data());
    CHECK(ring.receive(1) == Bytes(bytes.begin(), bytes.begin() + 1));
    CHECK(ring.producer.has_room());
    CHECK(ring.send(bytes, kRingBytes) == 1);
    CHECK(ring.receive(2 * kRingBytes) == Bytes(bytes.begin() + 1, bytes.begin() + kRingBytes + 1));
    CHECK_FALSE(ring.consumer.has_data());
    CHECK_FALSE(ring.producer.corrupt());
    CHECK_FALSE(ring.consumer.corrupt());
}

TEST_CASE("ring: many wraps, in uneven steps and pieces") {
    Ring ring;
    std::mt19937 random(5);
    const Bytes bytes = pattern(5 * kRingBytes + 12345, 2);
    Bytes got;
    for (size_t sent = 0; got.size() < bytes.size();) {
        const size_t step = 1 + random() % 300'000;
        const size_t first = std::min<size_t>({step / 3, bytes.size() - sent});
        const size_t second = std::min<size_t>({step - first, bytes.size() - sent - first});
        auto* data = const_cast<uint8_t*>(bytes.data()) + sent;
        const iovec out[3] = {{data, first}, {nullptr, 0}, {data + first, second}};
        sent += ring.producer.send(out, nullptr);
        Bytes a(1 + random() % 200'000);
        Bytes b(1 + random() % 100);
        const iovec in[2] = {{a.data(), a.size()}, {b.data(), b.size()}};
        const size_t n = ring.consumer.receive(in, random() % 2 == 0, nullptr);
        a.insert(a.end(), b.begin(), b.end());
        // The second piece begins only when the first is full.
        got.insert(got.end(), a.begin(), a.begin() + static_cast<ptrdiff_t>(n));
    }
    CHECK(same_bytes(got, bytes));
}

TEST_CASE("ring: a piece of several that is gone") {
    constexpr size_t kNbytes = 1024;
    install_fault_handler();
    const auto gone = map_private(kNbytes, PROT_NONE);
    REQUIRE(gone);
    Bytes first = pattern(kNbytes, 6);
    Bytes last = pattern(kNbytes, 7);
    // The pieces before the one that is gone may have been moved, or none of them.
    SUBCASE("of those that are sent") {
        Ring ring;
        const iovec pieces[3] = {{first.data(), kNbytes}, {gone.get(), kNbytes}, {last.data(), kNbytes}};
        size_t sent = ring.producer.send(pieces, nullptr);
        if (sent == kNbytes) {
            CHECK(ring.receive(3 * kNbytes) == first);
            sent = ring.producer.send(std::span(pieces).subspan(1), nullptr);
        }
        CHECK(sent == ByteStream::kGone);
        CHECK_FALSE(ring.consumer.has_data());
    }
    for (const bool streaming : {false, true}) {
        CAPTURE(streaming);
        SUBCASE("of those that are filled") {
            Ring ring;
            REQUIRE(ring.send(first) == kNbytes);
            REQUIRE(ring.send(last) == kNbytes);
            Bytes a(kNbytes);
            Bytes b(kNbytes);
            const iovec pieces[3] = {{a.data(), kNbytes}, {gone.get(), kNbytes}, {b.data(), kNbytes}};
            size_t got = ring.consumer.receive(pieces, streaming, nullptr);
            if (got == kNbytes) {
                CHECK(a == first);
                got = ring.consumer.receive(std::span(pieces).subspan(1), streaming, nullptr);
            }
            CHECK(got == ByteStream::kGone);
            CHECK(b == Bytes(kNbytes));
        }
    }
}

TEST_CASE("ring: two threads") {
    Ring ring;
    const Bytes bytes = pattern(20 * kRingBytes + 777, 3);
    std::thread sender([&] {
        std::mt19937 random(1);
        for (size_t sent = 0; sent < bytes.size();) {
            sent += ring.send(bytes, sent, 1 + random() % 100'000);
        }
    });
    Bytes got;
    std::mt19937 random(2);
    while (got.size() < bytes.size()) {
        const Bytes part = ring.receive(1 + random() % 100'000);
        got.insert(got.end(), part.begin(), part.end());
    }
    sender.join();
    CHECK(same_bytes(got, bytes));
}

TEST_CASE("ring: a third thread may look while the others work") {
    Ring ring;
    std::atomic<bool> stop{false};
    uint64_t seen = 0;
    std::thread looker([&] {
        while (!stop.load()) {
            seen += ring.producer.has_room() ? 1 : 0;
            seen += ring.consumer.has_data() ? 1 : 0;
            seen += ring.producer.corrupt() || ring.consumer.corrupt() ? 1'000'000'000 : 0;
        }
    });
    const Bytes bytes = pattern(3000, 4);
    for (int i = 0; i < 5000; ++i) {
        REQUIRE(ring.send(bytes) == bytes.size());
        REQUIRE(ring.receive(bytes.size()).size() == bytes.size());
    }
    stop.store(true);
    looker.join();
    CHECK(seen < 1'000'000'000);
}

TEST_CASE("ring: a tail that cannot be ends the lane, not the process") {
    for (const uint64_t tail : {uint64_t{kRingBytes + 1}, UINT64_MAX, uint64_t{1} << 63, UINT64_MAX - 5}) {
        Ring ring;
        ring.indices().tail.store(tail);
        CHECK(ring.receive(100).empty());
        CHECK(ring.consumer.corrupt());
        ring.indices().tail.store(10); // the ring stays corrupt
        CHECK(ring.consumer.corrupt());
    }
    Ring backwards;
    REQUIRE(backwards.send(pattern(100, 1)) == 100);
    REQUIRE(backwards.receive(100).size() == 100);
    backwards.indices().tail.store(99);
    CHECK(backwards.receive(100).empty());
    CHECK(backwards.consumer.corrupt());
}

TEST_CASE("ring: a head that cannot be ends the lane, not the process") {
    for (const uint64_t head : {uint64_t{kRingBytes + 1}, UINT64_MAX, uint64_t{1} << 63}) {
        Ring ring;
        const Bytes bytes = pattern(kRingBytes, 1);
        REQUIRE(ring.send(bytes) == kRingBytes);
        ring.indices().head.store(head);
        CHECK(ring.send(bytes) == 0);
        CHECK(ring.producer.corrupt());
    }
    Ring backwards;
    const Bytes bytes = pattern(kRingBytes, 1);
    REQUIRE(backwards.send(bytes) == kRingBytes);
    REQUIRE(backwards.receive(kRingBytes).size() == kRingBytes);
    REQUIRE(backwards.send(bytes) == kRingBytes);
    backwards.indices().head.store(0); // more bytes in flight than fit
    CHECK(backwards.send(bytes) == 0);
    CHECK(backwards.producer.corrupt());
}

TEST_CASE("ring: closed, by either end, is seen by both") {
    Ring ring;
    CHECK_FALSE(ring.producer.closed());
    ring.consumer.close();
    CHECK(ring.producer.closed());
    Ring other;
    REQUIRE(other.send(pattern(10, 1)) == 10);
    other.producer.close();
    CHECK(other.consumer.closed());
    CHECK(other.receive(100).size() == 10); // bytes that were sent before are still there
}

TEST_CASE("ring: what is not a sealed ring of the right size is refused") {
    const auto refused = [](int fd) {
        try {
            const RingProducer producer(fd);
        } catch (const NativeError& error) {
            return error.outcome().status == Status::protocol;
        }
        return false;
    };
    const RingConsumer good;
    CHECK_FALSE(refused(good.fd()));
    struct stat info{};
    REQUIRE(::fstat(good.fd(), &info) == 0);
    const auto nbytes = static_cast<size_t>(info.st_size);
    CHECK(refused(make_memfd("small", 4096, F_SEAL_SHRINK).get()));
    CHECK(refused(make_memfd("large", nbytes + 4096, F_SEAL_SHRINK).get()));
    CHECK(refused(make_memfd("open", nbytes, 0).get())); // unsealed: its owner could take the pages away
    CHECK_FALSE(refused(make_memfd("sealed", nbytes, F_SEAL_SHRINK).get()));
    const Sockets sockets = connected_sockets();
    CHECK(refused(sockets.a));
    ::close(sockets.a);
    ::close(sockets.b);
    CHECK_THROWS_AS(RingProducer(-1), NativeError);
}

TEST_CASE("presence: what is not a sealed page is refused") {
    Presence presence;
    const Doorbell bell = presence.make_doorbell();
    const int doorbell = bell.theirs.get();
    CHECK_THROWS_AS(PeerPresence(-1, doorbell), NativeError);
    CHECK_THROWS_AS(PeerPresence(presence.page_fd(), -1), NativeError);
    CHECK_THROWS_AS(PeerPresence(make_memfd("small", 0, F_SEAL_SHRINK).get(), doorbell), NativeError);
    CHECK_THROWS_AS(PeerPresence(make_memfd("other", page_bytes(), F_SEAL_SHRINK).get(), doorbell), NativeError);
    // Like our page, but unsealed, so that its owner could take it away.
    const Descriptor open = make_memfd("open", page_bytes(), 0);
    PresencePage page{};
    void* base = ::mmap(nullptr, page_bytes(), PROT_READ, MAP_SHARED, presence.page_fd(), 0);
    REQUIRE(base != MAP_FAILED);
    page.magic.store(static_cast<const PresencePage*>(base)->magic.load());
    ::munmap(base, page_bytes());
    REQUIRE(::pwrite(open.get(), &page, sizeof page, 0) == sizeof page);
    CHECK_THROWS_AS(PeerPresence(open.get(), doorbell), NativeError);
}

TEST_CASE("presence: a peer that makes its doorbell block, and fills or empties it, holds nobody up") {
    Presence presence;
    const Doorbell bell = presence.make_doorbell();
    const Doorbell other = presence.make_doorbell();
    const int shared = bell.theirs.get(); // as a peer gets it
    const PeerPresence before(presence.page_fd(), shared);
    REQUIRE(::fcntl(shared, F_SETFL, ::fcntl(shared, F_GETFL) & ~O_NONBLOCK) == 0);
    const PeerPresence after(presence.page_fd(), shared);
    const PeerPresence honest(presence.page_fd(), other.theirs.get());
    const Descriptor filler(
        ::open(("/proc/self/fd/" + std::to_string(shared)).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(filler);
    const std::vector<char> bytes(1 << 20);
    while (::write(filler.get(), bytes.data(), bytes.size()) > 0) {
    }
    before.ring(); // each of these would wait for ever
    after.ring();
    presence.ring();
    honest.ring();
    std::vector<char> taken(1 << 20);
    while (::read(filler.get(), taken.data(), taken.size()) > 0) {
    }
    pollfd entry{presence.bell_fd(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 0) == 1); // the bells of the others are not the peer's to empty
    presence.drain();
    CHECK(::poll(&entry, 1, 0) == 0);
    // And they ring as ever, each of them alone.
    for (const auto& ring :
         std::vector<std::function<void()>>{[&] { after.ring(); }, [&] { honest.ring(); }, [&] { presence.ring(); }}) {
        ring();
        CHECK(::poll(&entry, 1, 0) == 1);
        presence.drain();
        CHECK(::poll(&entry, 1, 0) == 0);
    }
    honest.ring();
    presence.close_doorbell(other.number);
    CHECK(::poll(&entry, 1, 0) == 0);
    honest.ring(); // nobody hears it, and no signal is raised
    CHECK(::poll(&entry, 1, 0) == 0);
    // A socket, or an event descriptor, is no doorbell.
    CHECK_THROWS_AS(PeerPresence(presence.page_fd(), Descriptor::event().get()), NativeError);
}

} // namespace test_ring
