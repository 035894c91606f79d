// Tests that the sim driver behaves as a GPU: memory, copies in every direction, streams, stream-ordered words,
// registration.
#include "base/pages.hpp"
#include "sim_fixture.hpp"

#include <cstring>
#include <sys/mman.h>

namespace test_sim {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::accel::test;

TEST_CASE("sim: facts") {
    Sim sim(2);
    CHECK(sim.driver->kind() == "sim");
    REQUIRE(sim.devices.size() == 2);
    CHECK(sim.device(1).facts().name == "sim:1");
    CHECK(sim.device(1).facts().kind == "sim");
    CHECK(sim.device(1).facts().total_bytes > 0);
    CHECK(make_sim_driver(0)->devices().empty());
    CHECK(make_sim_driver(-1)->devices().empty());
}

TEST_CASE("sim: the CPU cannot touch device memory, allocated or freed") {
    Sim sim;
    const uint64_t address = alloc(sim.device(), 8192);
    const auto crashed = [](int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV; };
    auto* byte = reinterpret_cast<volatile char*>(address);
    CHECK(crashed(in_child([&] { static_cast<void>(*byte); })));
    CHECK(crashed(in_child([&] { *byte = 1; })));
    CHECK(crashed(in_child([&] { byte[8191] = 1; })));
    REQUIRE(sim.device().free(address) == kOk);
    CHECK(crashed(in_child([&] { static_cast<void>(*byte); })));
}

TEST_CASE("sim: describe") {
    Sim sim;
    const uint64_t address = alloc(sim.device(1), 5000);
    CHECK(address % 4096 == 0);
    const Description whole = sim.driver->describe(address);
    CHECK(whole.kind == MemoryKind::device);
    CHECK(whole.allocated_by == AllocatedBy::plain);
    CHECK(whole.device == 1);
    CHECK(whole.base == address);
    CHECK(whole.size == 5000);
    CHECK(whole.allocation_id != 0);
    CHECK(sim.driver->describe(address + 4999).allocation_id == whole.allocation_id);
    CHECK(sim.driver->allocation_id(address + 4999) == whole.allocation_id);
    CHECK(sim.driver->allocation_id(address + 5000) == 0);
    CHECK(sim.driver->describe(address + 5000).kind == MemoryKind::unknown);
    CHECK(sim.driver->describe(0).kind == MemoryKind::unknown);
    int on_stack = 0;
    CHECK(sim.driver->describe(at(&on_stack)).kind == MemoryKind::unknown);
    REQUIRE(sim.device(1).free(address) == kOk);
    CHECK(sim.driver->describe(address).kind == MemoryKind::unknown);
}

TEST_CASE("sim: an address that comes back has a new id") {
    Sim sim;
    const uint64_t first = alloc(sim.device(), 4096);
    const uint64_t id = sim.driver->describe(first).allocation_id;
    REQUIRE(sim.device().free(first) == kOk);
    const uint64_t second = alloc(sim.device(), 4096);
    CHECK(second == first);
    CHECK(sim.driver->describe(second).allocation_id > id);
    Sim other;
    CHECK(other.driver->describe(alloc(other.device(), 1)).allocation_id > sim.driver->describe(second).allocation_id);
}

TEST_CASE("sim: free refuses what is not the start of an own allocation") {
    Sim sim;
    const uint64_t address = alloc(sim.device(0), 8192);
    CHECK(sim.device(0).free(address + 4096) == kBounds);
    CHECK(sim.device(1).free(address) == kBounds);
    CHECK(sim.device(0).free(0) == kBounds);
    CHECK(sim.device(0).free(address) == kOk);
    CHECK(sim.device(0).free(address) == kBounds);
}

TEST_CASE("sim: allocation sizes") {
    Sim sim;
    uint64_t address = 7;
    CHECK(sim.device().alloc(0, address) == kBounds);
    CHECK(sim.device().alloc(SIZE_MAX, address) == kAllocFailed);
    const size_t total = sim.device().facts().total_bytes;
    CHECK(sim.device().alloc(total + 1, address) == kAllocFailed);
    CHECK(address == 7);
    // The allocation is as large as the machine's memory, and fits because nothing is touched. Then this device is
    // full, and the other is not.
    const uint64_t all = alloc(sim.device(), total);
    CHECK(sim.device().alloc(1, address) == kAllocFailed);
    const uint64_t other = alloc(sim.device(1), total);
    const Bytes mark = pattern(100, 1);
    put(*sim.stream, other + total - 100, mark);
    CHECK(fetch(*sim.stream, other + total - 100, 100) == mark);
    CHECK(sim.device().free(all) == kOk);
    CHECK(sim.device().free(alloc(sim.device(), 1)) == kOk);
}

TEST_CASE("sim: addresses are reused and never overlap") {
    Sim sim;
    std::vector<uint64_t> held;
    for (size_t round = 0; round < 400; ++round) {
        if (held.size() > 20) {
            const size_t victim = round * 7 % held.size();
            REQUIRE(sim.device().free(held[victim]) == kOk);
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
        }
        held.push_back(alloc(sim.device(), 1 + round * 1237 % 50000));
    }
    for (const uint64_t one : held) {
        const Description mine = sim.driver->describe(one);
        CHECK(mine.base == one);
        for (const uint64_t two : held) {
            CHECK((one == two || two >= one + mine.size || sim.driver->describe(two).size + two <= one));
        }
        REQUIRE(sim.device().free(one) == kOk);
    }
    const uint64_t lowest = alloc(sim.device(), 1 << 20);
    CHECK(sim.device().free(lowest) == kOk);
    CHECK(alloc(sim.device(), 3 << 20) == lowest); // the neighbours were merged again
}

TEST_CASE("sim: no descriptor and no mapping is left behind") {
    const int before = open_descriptors();
    {
        Sim sim;
        for (int i = 0; i < 50; ++i) {
            const uint64_t address = alloc(sim.device(), 100000);
            if (i % 2 == 0) {
                REQUIRE(sim.device().free(address) == kOk);
            }
        }
        CHECK(open_descriptors() == before + 25);
    }
    CHECK(open_descriptors() == before);
}

TEST_CASE("sim: copies in all directions, at every offset") {
    Sim sim;
    constexpr size_t room = (2 << 20) + 8192; // two copies of the largest do not overlap
    const uint64_t zero = alloc(sim.device(0), room);
    const uint64_t one = alloc(sim.device(1), room);
    for (const size_t nbytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4095}, size_t{4096}, size_t{4097},
                                size_t{(1 << 20) + 1}}) {
        for (const size_t offset : {size_t{0}, size_t{1}, size_t{7}, size_t{4093}}) {
            CAPTURE(nbytes);
            CAPTURE(offset);
            const Bytes sent = pattern(nbytes, static_cast<unsigned>(offset));
            put(*sim.stream, zero + offset, sent);                                            // host to device
            REQUIRE(wait(copy(*sim.stream, one + offset / 2, zero + offset, nbytes)) == kOk); // to the other device
            REQUIRE(wait(copy(*sim.stream, one + room - nbytes, one + offset / 2, nbytes)) == kOk); // within one
            Bytes received(nbytes + offset + 1, 0xEE);
            REQUIRE(wait(copy(*sim.stream, at(received.data() + offset), one + room - nbytes, nbytes)) == kOk);
            CHECK(received.back() == 0xEE);
            Bytes again(nbytes);
            REQUIRE(wait(copy(*sim.stream, at(again.data()), at(received.data() + offset), nbytes)) == kOk); // host
            CHECK(again == sent);
        }
    }
}

TEST_CASE("sim: a copy larger than one piece") {
    Sim sim;
    const size_t nbytes = (size_t{32} << 20) + 4097;
    const uint64_t address = alloc(sim.device(), nbytes);
    const Bytes sent = pattern(nbytes, 5);
    put(*sim.stream, address, sent);
    CHECK(fetch(*sim.stream, address, nbytes) == sent);
}

TEST_CASE("sim: batches of segments") {
    Sim sim;
    constexpr size_t page = 256;
    constexpr size_t count = 500;
    const uint64_t memory = alloc(sim.device(), page * count);
    const Bytes sent = pattern(page * count, 3);
    std::vector<CopySegment> scatter;
    for (size_t i = 0; i < count; ++i) {
        const size_t target = (i * 7) % count; // 7 and 500 have no common divisor
        scatter.push_back({memory + target * page, at(sent.data() + i * page), page});
    }
    scatter.push_back({memory + 1, 0, 0}); // empty: addresses do not matter
    REQUIRE(wait(sim.stream->copy(scatter)) == kOk);
    const Bytes received = fetch(*sim.stream, memory, page * count);
    for (size_t i = 0; i < count; ++i) {
        REQUIRE(std::memcmp(sent.data() + i * page, received.data() + (i * 7) % count * page, page) == 0);
    }
    CHECK(wait(sim.stream->copy({})) == kOk);
}

TEST_CASE("sim: one stream keeps its order") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 64);
    std::vector<uint64_t> values(1000);
    std::vector<uint64_t> seen(1000);
    std::vector<std::shared_ptr<Event>> events;
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = i * 3 + 1;
        copy(*sim.stream, memory, at(&values[i]), 8);
        events.push_back(copy(*sim.stream, at(&seen[i]), memory, 8));
    }
    const auto last = sim.stream->record();
    CHECK(wait(last) == kOk);
    for (const auto& event : events) {
        REQUIRE(event->query() == EventState::done);
    }
    CHECK(seen == values);
}

TEST_CASE("sim: streams run at the same time, and independently") {
    Sim sim;
    auto second = sim.device(1).stream();
    uint32_t ping = 0;
    const uint64_t pong = alloc(sim.device(), 4);
    REQUIRE(wait(sim.stream->write32(pong, 0)) == kOk);
    // The streams wait for each other in turn, which ends only if both run.
    std::vector<std::shared_ptr<Event>> events;
    for (uint32_t round = 1; round <= 50; ++round) {
        events.push_back(sim.stream->wait32(at(&ping), round));
        events.push_back(sim.stream->write32(pong, round));
        events.push_back(second->write32(at(&ping), round));
        events.push_back(second->wait32(pong, round));
    }
    for (const auto& event : events) {
        REQUIRE(wait(event) == kOk);
    }
    const auto blocked = sim.stream->wait32(at(&ping), 1000);
    CHECK(wait(second->record()) == kOk);
    CHECK(blocked->query() == EventState::pending);
    CHECK(blocked->outcome().status == Status::pending);
    store(ping, 1000); // a plain CPU store releases it too
    CHECK(wait(blocked) == kOk);
}

TEST_CASE("sim: write32 and wait32 on device and host words") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 4098);
    uint32_t host = 0;
    CHECK(wait(sim.stream->write32(memory + 4092, 0xDEADBEEF)) == kOk);
    CHECK(wait(sim.stream->wait32(memory + 4092, 0xDEADBEEF)) == kOk);
    CHECK(fetch(*sim.stream, memory + 4092, 4) == Bytes{0xEF, 0xBE, 0xAD, 0xDE});
    CHECK(wait(sim.stream->write32(at(&host), 77)) == kOk);
    CHECK(load(host) == 77);
    CHECK(wait(sim.stream->write32(memory + 2, 1)) == kBounds);
    CHECK(wait(sim.stream->wait32(memory + 1, 1)) == kBounds);
    CHECK(wait(sim.stream->write32(memory + 4096, 1)) == kBounds); // two of its four bytes are inside
    CHECK(wait(sim.stream->write32(0, 1)) == kBounds);
}

TEST_CASE("sim: host registration") {
    Sim sim;
    Bytes host(10000);
    const auto describe = [&](size_t offset) { return sim.driver->describe(at(host.data()) + offset); };
    CHECK(sim.driver->register_host(host.data() + 1000, 2000, accel::HostPages::writable) == kOk);
    CHECK(describe(1000).kind == MemoryKind::host);
    CHECK(describe(2999).base == at(host.data()) + 1000);
    CHECK(describe(2999).size == 2000);
    CHECK(describe(2999).device == -1);
    CHECK(describe(999).kind == MemoryKind::unknown);
    CHECK(describe(3000).kind == MemoryKind::unknown);
    CHECK(sim.driver->register_host(host.data() + 1000, 2000, accel::HostPages::writable) == kInPart);
    CHECK(sim.driver->register_host(host.data(), 1001, accel::HostPages::writable) == kInPart);
    CHECK(sim.driver->register_host(host.data() + 2999, 1, accel::HostPages::writable) == kInPart);
    CHECK(sim.driver->register_host(host.data(), 10000, accel::HostPages::writable) == kInPart);
    CHECK(sim.driver->register_host(host.data(), 1000, accel::HostPages::writable) == kOk);
    CHECK(sim.driver->register_host(host.data() + 3000, 1, accel::HostPages::writable) == kOk);
    CHECK(sim.driver->register_host(nullptr, 10, accel::HostPages::writable) == kBounds);
    CHECK(sim.driver->register_host(host.data() + 5000, 0, accel::HostPages::writable) == kBounds);
    CHECK(sim.driver->register_host(host.data() + 5000, SIZE_MAX, accel::HostPages::writable) == kBounds);
    const uint64_t memory = alloc(sim.device(), 100);
    CHECK(sim.driver->register_host(reinterpret_cast<void*>(memory), 10, accel::HostPages::writable) == kBounds);
    CHECK(sim.driver->unregister_host(host.data() + 1001) == kBounds);
    CHECK(sim.driver->unregister_host(host.data() + 1000) == kOk);
    CHECK(sim.driver->unregister_host(host.data() + 1000) == kBounds);
    CHECK(sim.driver->register_host(host.data() + 1500, 100, accel::HostPages::writable) == kOk);
    const size_t page = page_bytes();
    void* const mapped = mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    auto* const pages = static_cast<std::byte*>(mapped);
    REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0); // a hole
    CHECK(sim.driver->register_host(pages, 3 * page, accel::HostPages::writable) == kLocalMemoryGone);
    CHECK(sim.driver->register_host(pages + 10, page - 10, accel::HostPages::writable) == kOk);
    CHECK(sim.driver->register_host(pages + 2 * page, page, accel::HostPages::writable) == kOk);
    munmap(mapped, 3 * page);
}

} // namespace test_sim
