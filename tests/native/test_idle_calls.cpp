// Tests driver calls that wait for streams: they run on a thread of their own, in order, and none while a stream waits
// for us.
#include "accel/idle_calls.hpp"
#include "base/clock.hpp"
#include "gpu_fixture.hpp"
#include "gpu_user_stream.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace test_idle_calls {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::test;

namespace {

constexpr size_t kPage = 4096;

// A user's stream of the first device, which is held while this lives.
template <class Vendor> struct Still {
    explicit Still(Gpu& gpu) : gate(gpu.driver->gate(0, stream.number())) {}
    UserStream<Vendor> stream{0};
    std::shared_ptr<Gate> gate;
};

bool is_known(const Gpu& gpu, const void* address) {
    return gpu.driver->describe(at(address)).kind != MemoryKind::unknown;
}

} // namespace

TEST_CASE("idle: calls are made in order, and what they hold goes before they count as done") {
    IdleCalls& calls = IdleCalls::of_process();
    std::vector<int> made;
    const auto held = std::make_shared<int>(0);
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i) {
        last = calls.later([&made, held, i] { made.push_back(i); });
    }
    CHECK(calls.last() == last);
    REQUIRE(calls.done(last, patience_ns(10 * kSecond)));
    CHECK(held.use_count() == 1);
    REQUIRE(made.size() == 100);
    for (int i = 0; i < 100; ++i) {
        CHECK(made[static_cast<size_t>(i)] == i);
    }
}

TEST_CASE("idle: one that takes long is not waited for longer than is asked, and then by nobody") {
    IdleCalls& calls = IdleCalls::of_process();
    std::atomic<bool> go{false};
    const uint64_t first = calls.later([&] { go.wait(false); });
    const uint64_t second = calls.later([] {});
    CHECK_FALSE(calls.done(first, kMillisecond));
    // returns at once, because the call before it has taken that long already
    CHECK_FALSE(calls.done(second, kMillisecond));
    CHECK_FALSE(calls.done(second, 0));
    go = true;
    go.notify_all();
    CHECK(calls.done(second, patience_ns(10 * kSecond)));
    CHECK(calls.done(first, 0));
    CHECK(calls.done(0, 0));
}

TEST_CASE("idle: none begins while something holds a stream, and what would hold one waits for one under way") {
    IdleCalls& calls = IdleCalls::of_process();
    std::atomic<bool> made{false};
    uint64_t number = 0;
    {
        const IdleCalls::Hold first;
        IdleCalls::Hold second;
        number = calls.later([&] { made = true; });
        second.end();
        second.end(); // counts once
        CHECK_FALSE(calls.done(number, kMillisecond));
        CHECK_FALSE(made);
    }
    CHECK(calls.done(number, patience_ns(10 * kSecond)));
    CHECK(made);

    std::atomic<bool> begun{false};
    std::atomic<bool> go{false};
    std::atomic<bool> ended{false};
    number = calls.later([&] {
        begun = true;
        begun.notify_all();
        go.wait(false);
        ended = true;
    });
    begun.wait(false);
    std::thread holder([&] {
        const IdleCalls::Hold hold;
        CHECK(ended);
    });
    go = true;
    go.notify_all();
    holder.join();
    CHECK(calls.done(number, patience_ns(10 * kSecond)));
}

TEST_CASE("idle: a hold may begin at once, and tell when the call under way has ended") {
    IdleCalls& calls = IdleCalls::of_process();
    std::atomic<bool> begun{false};
    std::atomic<bool> go{false};
    const uint64_t number = calls.later([&] {
        begun = true;
        begun.notify_all();
        go.wait(false);
    });
    begun.wait(false);
    {
        IdleCalls::Hold hold{IdleCalls::Hold::AtOnce{}};
        CHECK_FALSE(hold.settled(now_ns() + kMillisecond));
        const uint64_t next = calls.later([] {});
        go = true;
        go.notify_all();
        CHECK(hold.settled(now_ns() + patience_ns(10 * kSecond)));
        CHECK(calls.done(number, 0));
        CHECK_FALSE(calls.done(next, 0));
    }
    CHECK(calls.done(calls.last(), patience_ns(10 * kSecond)));
}

TEST_CASE_TEMPLATE("idle: while a stream waits memory is freed later, and can be had once it is", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t address = gpu.alloc(kBytes);
    gpu.allocated.clear();
    {
        const Still<Vendor> still(gpu);
        REQUIRE(gpu.devices[0]->free(address).ok());
        CHECK(gpu.driver->describe(address).kind == MemoryKind::device);
    }
    settle();
    CHECK(gpu.driver->describe(address).kind == MemoryKind::unknown);
}

TEST_CASE("idle: the first copy by kernels that are loaded waits for nothing") {
    Gpu gpu(Cuda::api());
    gpu.driver->load_kernels(0, "an image of its own"); // one that was loaded before is not loaded again
    const uint64_t from = gpu.alloc(kBytes);
    const uint64_t to = gpu.alloc(kBytes);
    const Still<Cuda> still(gpu);
    const std::array<CopySegment, 2> segments{{{to, from, 64}, {to + 64, from + 64, 64}}};
    CHECK(ends(*gpu.stream->copy_many(segments, {})));
}

TEST_CASE_TEMPLATE("idle: host memory that is leaving can be registered again before the driver is told", Vendor, Cuda,
                   Hip) {
    Gpu gpu(Vendor::api());
    alignas(kPage) static std::array<std::byte, 4 * kPage> memory;
    const auto held = std::make_shared<int>(0);
    REQUIRE(gpu.driver->register_host(memory.data(), memory.size(), accel::HostPages::writable).ok());
    {
        const Still<Vendor> still(gpu);
        REQUIRE(gpu.driver->unregister_host(memory.data(), held).ok());
        CHECK(held.use_count() == 2);
        CHECK(gpu.driver->register_host(memory.data() + kPage, kPage, accel::HostPages::writable).ok());
    }
    settle();
    CHECK(held.use_count() == 1);
    CHECK(is_known(gpu, memory.data())); // it is still registered
    REQUIRE(gpu.driver->unregister_host(memory.data() + kPage, held).ok());
    settle();
    CHECK(held.use_count() == 1);
    CHECK_FALSE(is_known(gpu, memory.data()));
    REQUIRE(gpu.driver->register_host(memory.data(), memory.size(), accel::HostPages::writable).ok());
    REQUIRE(gpu.driver->unregister_host(memory.data()).ok());
    settle();
}

TEST_CASE_TEMPLATE("idle: memory that is full while some is being freed", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const size_t most = gpu.devices[0]->facts().total_bytes;
    std::vector<uint64_t> all;
    for (uint64_t address = 0; gpu.devices[0]->alloc(most / 4, address).ok();) {
        all.push_back(address);
    }
    REQUIRE_FALSE(all.empty());
    for (const uint64_t each : all) {
        REQUIRE(gpu.devices[0]->free(each).ok());
    }
    gpu.alloc(most / 4); // fits although the driver may not have freed the memory yet
}

} // namespace test_idle_calls
