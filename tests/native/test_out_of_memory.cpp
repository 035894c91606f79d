// Tests allocations that fail on the engine's own threads: operations end, lanes may, and the process goes on. And
// what a peer can make this process keep.
#include "accel/gpu/gpu_driver.hpp"
#include "accel/idle_calls.hpp"
#include "gpu_vendors.hpp"
#include "memory/staging.hpp"
#include "raw_peer.hpp"
#include "served_fixture.hpp"
#include "storage/staging_blocks.hpp"

#include <cstdlib>
#include <functional>
#include <new>

namespace test_out_of_memory {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Allocations on other threads than the test's: how many more succeed, and how many fail after those.
std::atomic<int64_t> allocations_left{INT64_MAX};
std::atomic<int64_t> failures_left{0};
thread_local bool is_test_thread = false;

bool fails() {
    return !is_test_thread && failures_left.load(std::memory_order_relaxed) > 0 && allocations_left.fetch_sub(1) <= 0 &&
           failures_left.fetch_sub(1) > 0;
}

} // namespace

} // namespace test_out_of_memory

// NOLINTBEGIN(misc-new-delete-overloads,cppcoreguidelines-no-malloc)
// Not inlined: the compiler would take malloc and free, seen apart, for a mistake.
[[gnu::noinline]] void* operator new(size_t nbytes) {
    void* const made = test_out_of_memory::fails() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
    if (made == nullptr) {
        throw std::bad_alloc();
    }
    return made;
}
// Part of the set: a sanitizer's own would not be freed by the delete below.
[[gnu::noinline]] void* operator new(size_t nbytes, const std::nothrow_t& /*tag*/) noexcept {
    return test_out_of_memory::fails() ? nullptr : std::malloc(nbytes == 0 ? 1 : nbytes);
}
[[gnu::noinline]] void operator delete(void* made) noexcept {
    std::free(made);
}
[[gnu::noinline]] void operator delete(void* made, size_t /*nbytes*/) noexcept {
    std::free(made);
}
// NOLINTEND(misc-new-delete-overloads,cppcoreguidelines-no-malloc)

namespace test_out_of_memory {

namespace {

// While it lives, allocations on other threads fail: `count` of them, after the first `after`.
class Failing {
public:
    Failing(int64_t after, int64_t count) : count_(count) {
        is_test_thread = true;
        allocations_left = after;
        failures_left = count;
    }
    ~Failing() { failures_left = 0; }
    Failing(const Failing&) = delete;
    Failing& operator=(const Failing&) = delete;
    bool any() const { return failures_left < count_; }

private:
    const int64_t count_;
};

bool may_be(Outcome outcome) {
    return outcome.ok() || outcome.status == Status::peer_lost || outcome.status == Status::closed ||
           outcome.reason == Reason::out_of_memory;
}

constexpr size_t kBytes = 1 << 20;

// Returns whether an allocation has failed.
bool survives(const std::string& provider, bool mapped, int64_t after, int64_t count) {
    Pair pair(provider, 0);
    Reach reach = pair.reach(kBytes, kHostDevice, kHostDevice, mapped);
    const std::shared_ptr<Region> into = pair.b.alloc(kBytes);
    std::vector<uint64_t> pages(kBytes / 4096);
    std::iota(pages.begin(), pages.end(), uint64_t{0});
    std::vector<OpRef> ops;
    const auto begin = [&](const Side& side, Request request, bool message = false) {
        request.deadline_ns = soon();
        const Posted posted =
            message ? post(side, std::move(request), true) : post(side, reach.route, std::move(request), true);
        if (posted.op) {
            ops.push_back(posted.op);
        }
    };
    bool any = false;
    {
        const Failing failing(after, count);
        begin(pair.b, message(Kind::recv, into, kBytes), true);
        begin(pair.b, message(Kind::recv, into, kBytes), true);
        begin(pair.a, message(Kind::send, reach.local, 100), true);
        begin(pair.a, message(Kind::send, reach.local, kBytes), true);
        begin(pair.a, request(Kind::write, 0, 0, 100, 1));
        begin(pair.a, request(Kind::write, 0, 0, kBytes, 2));
        begin(pair.a, page_request(Kind::write, pages, pages, 4096, 3));
        begin(pair.a, request(Kind::read, 0, 0, kBytes));
        begin(pair.a, page_request(Kind::read, pages, pages, 4096));
        begin(pair.a, request(Kind::fetch_add, 0, 0, 8));
        for (const OpRef& op : ops) {
            // Not by a call that polls itself: the engine's threads do it.
            REQUIRE(eventually([&] { return op->done(); }));
        }
        any = failing.any();
    }
    for (const OpRef& op : ops) {
        CHECK(may_be({op->status(), op->reason()}));
    }
    CHECK(eventually([&] { return reach.local->pins() == 0 && into->pins() == 0; }));
    return any;
}

} // namespace

TEST_CASE("out of memory: each allocation of the engine's threads may fail") {
    for (const auto& [provider, mapped] : {std::pair{"shm", true}, {"shm", false}, {"tcp", false}}) {
        CAPTURE(provider);
        CAPTURE(mapped);
        for (int64_t after = 0; survives(provider, mapped, after, 1); ++after) {
        }
        for (const int64_t after : {0, 3, 10}) {
            CHECK(survives(provider, mapped, after, 50)); // and for a while
        }
    }
}

TEST_CASE("out of memory: what peers ask for and do not take is bounded, for each and for all together") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        Side side(0);
        const std::shared_ptr<Region> region = side.alloc(1 << 20);
        const ShareId share = side.engine->shares().add(region, 0, region->nbytes(), kReadWrite, kCapability);
        const std::vector<uint64_t> table(framed::kMaxTable);
        FrameHeader header;
        header.kind = FrameKind::read_pages;
        header.share_index = share.index;
        header.share_generation = share.generation;
        header.capability = kCapability;
        header.arg = 4096;
        const auto ask = [&](RawPeer& peer, uint32_t count) {
            for (; count != 0 && peer.send(header, table); --count) {
                ++header.ticket;
            }
            return count == 0;
        };
        std::vector<std::unique_ptr<RawPeer>> peers;
        std::vector<std::shared_ptr<Endpoint>> lanes;
        const auto add = [&] {
            peers.push_back(std::make_unique<RawPeer>(side, provider));
            lanes.push_back(side.lane);
        };
        // One alone may have as much as an honest one can need, and is hung up on beyond.
        add();
        CHECK_FALSE(ask(*peers[0], 2 * framed::kWindow));
        CHECK(eventually([&] { return !lanes[0]->state().ok(); }));
        CHECK(lanes[0]->state() == Outcome{Status::protocol, Reason::window_full});
        CHECK(eventually([&] { return side.engine->kept_bytes() == 0; }));
        // Several, each with less than that.
        for (int i = 0; i < 3; ++i) {
            add();
            ask(*peers.back(), framed::kWindow - 100);
        }
        CHECK(lanes[1]->state().ok());
        CHECK(lanes[2]->state().ok());
        CHECK(eventually([&] { return !lanes[3]->state().ok(); }));
        CHECK(lanes[3]->state() == kLaneOutOfMemory);
        CHECK(side.engine->kept_bytes() <= framed::kMostKept);
        peers.clear();
        CHECK(eventually([&] { return side.engine->kept_bytes() == 0; }));
    }
}

TEST_CASE("out of memory: a device that could not be staged can be later") {
    size_t failed = 0;
    for (int64_t after = 0; after < 40; ++after) {
        CAPTURE(after);
        const Files files(storage::open_threads(1));
        const TestFile file(pattern(8192, 3));
        const auto memory = files.side.alloc(8192, kSimDevice);
        const OpRef op = files.side.engine->operations().create(0);
        auto sink = std::make_shared<storage::OperationSink>(*files.side.engine, op, 1, 0, files.moved);
        const std::vector<Range> ranges{{.nbytes = 8192}};
        Place place = place_of(memory);
        {
            const Failing failing(after, 1);
            bool begun = false;
            std::thread([&] {
                try {
                    begun = files.queue->post({file.file, std::move(place), false}, ranges, std::move(sink)).ok();
                } catch (const std::bad_alloc&) {
                    begun = false; // as it is
                }
            }).join();
            if (begun) {
                const Outcome outcome = files.side.wait(op);
                CHECK((may_be(outcome) || outcome.status == Status::no_memory));
            }
            failed += failing.any() ? 1 : 0;
        }
        const OpRef again = files.run(file, memory, false, {.nbytes = 8192});
        CHECK(again->status() == Status::ok);
        CHECK(again->bytes_done() == 8192);
    }
    CHECK(failed > 10);
}

TEST_CASE("out of memory: each transfer that a server is asked for has one result, or has not begun") {
    constexpr size_t kTransfers = 300;
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < kTransfers; ++i) {
        ranges.push_back({.memory_offset = i, .nbytes = 1, .userdata = i});
    }
    size_t failed = 0;
    for (int64_t after = 0; after < 120; ++after) {
        CAPTURE(after);
        Served served(storage::open_threads(2));
        const TestFile file(pattern(8192, 3));
        Reach reach = served.pair.reach(8192, kHostDevice, kHostDevice, true);
        const auto number = served.add_file(file);
        const auto memory = served.add_memory(reach);
        auto ring = std::make_shared<storage::Ring>(*served.pair.b.engine, kTransfers);
        REQUIRE(ring->reserve(kTransfers));
        bool begun = false;
        {
            const Failing failing(after, 1);
            std::thread([&] {
                try {
                    begun = served.asking->post({number, memory}, ranges, ring);
                } catch (const std::bad_alloc&) {
                    begun = false;
                }
            }).join();
            if (begun) {
                CHECK(eventually([&] { return ring->ready() == kTransfers; }));
            }
            failed += failing.any() ? 1 : 0;
        }
        std::vector<storage::Completion> done(kTransfers);
        REQUIRE(ring->take(done) == (begun ? kTransfers : 0));
        std::vector<bool> found(kTransfers);
        for (size_t i = 0; begun && i < kTransfers; ++i) {
            CHECK_FALSE(found[done[i].userdata]);
            found[done[i].userdata] = true;
            CHECK(may_be(done[i].outcome));
        }
    }
    CHECK(failed > 20);
}

namespace {

// Calls `attempt` on another thread, where allocation number `after` fails; returns whether one has failed.
bool failing_at(int64_t after, const std::function<void()>& attempt) {
    const Failing failing(after, 1);
    bool told = false;
    std::thread([&] {
        try {
            attempt();
        } catch (const std::bad_alloc&) {
            told = true;
        }
    }).join();
    return told || failing.any();
}

} // namespace

TEST_CASE("out of memory: buffers between a lane and a device are made as a whole, or the next attempt makes them") {
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        Side side(1);
        side.engine->accelerators().devices();
        const auto pool = std::make_shared<StagingPool>(side.engine->accelerators());
        Outcome why;
        bool first = false;
        any = failing_at(after, [&] { first = static_cast<bool>(pool->try_acquire(why)); });
        CHECK(first == why.ok()); // no buffer without a reason would be waited for
        CHECK((why.ok() || why == kLocalNoStaging));
        std::vector<StagingBuffer> buffers;
        Outcome none;
        while (StagingBuffer buffer = pool->try_acquire(none)) {
            buffers.push_back(std::move(buffer));
        }
        CHECK(buffers.size() == kStagingBuffers);
        CHECK(none.ok());
    }
    CHECK(after > 3);
}

TEST_CASE("out of memory: buffers between files and devices are made as a whole, or the next attempt makes them") {
    constexpr size_t kBlocks = 5;
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        Side side(1);
        side.engine->accelerators().devices();
        storage::StagingBlocks blocks(side.engine->accelerators(), kBlocks << 16, 1 << 16);
        Outcome why;
        bool first = false;
        any = failing_at(after, [&] { first = static_cast<bool>(blocks.try_acquire(why)); });
        CHECK(first == why.ok());
        std::vector<storage::StagingBlocks::Block> taken;
        Outcome none;
        while (storage::StagingBlocks::Block block = blocks.try_acquire(none)) {
            taken.push_back(std::move(block));
        }
        CHECK(taken.size() == kBlocks);
        CHECK(none.ok());
    }
    CHECK(after > 3);
}

TEST_CASE("out of memory: a device's stream is made as a whole, or not at all") {
    Side side(1);
    const auto device = side.engine->accelerators().devices().at(0);
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        std::unique_ptr<accel::Stream> stream;
        Outcome why;
        any = failing_at(after, [&] { stream = device->stream(why); });
        CHECK((stream != nullptr) == why.ok());
        stream.reset();
        CHECK(device->mark() != nullptr); // asks each stream of the device, and none of those is gone
    }
    CHECK(after > 3);
}

TEST_CASE("out of memory: devices are found as a whole, or the next attempt finds them") {
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        Side side(3);
        any = failing_at(after, [&] { side.engine->accelerators().devices(); });
        CHECK(side.engine->accelerators().devices().size() == 3);
    }
    CHECK(after > 2);
}

TEST_CASE_TEMPLATE("out of memory: GPUs of a driver are found as a whole, or the next attempt finds them", Vendor, Cuda,
                   Hip) {
    const size_t count = accel::make_gpu_driver(Vendor::api())->devices().size();
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        const auto driver = accel::make_gpu_driver(Vendor::api());
        any = failing_at(after, [&] { driver->devices(); });
        CHECK(driver->devices().size() == count);
    }
    CHECK(after > 2);
}

TEST_CASE("out of memory: a call for an idle device that finds no memory for its thread is made later") {
    auto& calls = accel::IdleCalls::of_process();
    int64_t after = 0;
    for (bool any = true; any; ++after) {
        CAPTURE(after);
        calls.wait(calls.last());
        accel::IdleCalls::Hold hold;
        std::atomic<bool> called{false};
        const uint64_t number = calls.later([&] { called = true; });
        any = failing_at(after, [&] { hold.end(); }); // a destructor calls it: it throws nothing
        calls.wait(number);
        CHECK(called);
    }
    CHECK(after > 1);
}

} // namespace test_out_of_memory
