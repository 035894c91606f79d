// Tests the sim driver's failures: injected faults, mistakes of the user, and teardown and threads at the worst moment.
#include "sim_fixture.hpp"

#include <array>
#include <sys/resource.h>

namespace test_sim_faults {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::accel::test;
using namespace std::chrono_literals;

TEST_CASE("sim: a forked child drops streams without hanging") {
    Sim sim;
    CHECK(wait(sim.stream->record()) == kOk);
    CHECK(in_child([&] { sim.stream.reset(); }) == 0);
    CHECK(wait(sim.stream->record()) == kOk);
}

TEST_CASE("sim: out of descriptors") {
    Sim sim;
    const uint64_t kept = alloc(sim.device(), 4096);
    const int before = open_descriptors();
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlimit none{3, limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    uint64_t address = 0;
    const Outcome outcome = sim.device().alloc(4096, address);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(outcome == Outcome{Status::no_memory, Reason::out_of_descriptors});
    CHECK(address == 0);
    CHECK(open_descriptors() == before);
    CHECK(sim.device().free(kept) == kOk);
    CHECK(sim.device().free(alloc(sim.device(), 4096)) == kOk);
}

TEST_CASE("sim: out of bounds fails the event, moves nothing, and the stream goes on") {
    Sim sim;
    constexpr size_t nbytes = 5000;
    const uint64_t memory = alloc(sim.device(), nbytes);
    alloc(sim.device(), nbytes); // a neighbour that must not be reached
    const Bytes old = pattern(nbytes, 1);
    put(*sim.stream, memory, old);
    Bytes host(2 * nbytes, 9);
    const uint64_t h = at(host.data());
    const Bytes untouched = host;

    CHECK(wait(copy(*sim.stream, memory, h, nbytes + 1)) == kBounds);
    CHECK(wait(copy(*sim.stream, memory + nbytes, h, 1)) == kBounds);
    CHECK(wait(copy(*sim.stream, memory + 1, h, nbytes)) == kBounds);
    CHECK(wait(copy(*sim.stream, h, memory + nbytes - 1, 2)) == kBounds);
    CHECK(wait(copy(*sim.stream, h, memory, SIZE_MAX)) == kBounds);
    CHECK(wait(copy(*sim.stream, h, memory, SIZE_MAX - memory + 2)) == kBounds);
    CHECK(wait(copy(*sim.stream, h, 0, 1)) == kBounds);
    CHECK(wait(copy(*sim.stream, 8, h, 1)) == kBounds);
    CHECK(wait(copy(*sim.stream, memory - 1, h, 2)) == kBounds); // starts before the first allocation

    // A bad segment comes last: the good ones before it do not move either.
    const std::array<CopySegment, 4> batch{
        {{memory, h, 10}, {memory + 10, h, 10}, {h, memory, 10}, {memory + nbytes, h, 1}}};
    CHECK(wait(sim.stream->copy(batch)) == kBounds);
    CHECK(host == untouched);
    CHECK(fetch(*sim.stream, memory, nbytes) == old);
}

TEST_CASE("sim: freed memory fails the event, queued or later") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 8192);
    const uint64_t gate = alloc(sim.device(), 4096);
    uint32_t word = 0;
    REQUIRE(wait(copy(*sim.stream, gate, at(&word), 4)) == kOk);
    const auto held = sim.stream->wait32(gate, 1);
    Bytes host(8192);
    const auto queued = copy(*sim.stream, at(host.data()), memory, 8192);
    REQUIRE(sim.device().free(memory) == kOk);
    auto opener = sim.device().stream();
    CHECK(wait(opener->write32(gate, 1)) == kOk);
    CHECK(wait(held) == kOk);
    CHECK(wait(queued) == kBounds);
    CHECK(wait(copy(*sim.stream, memory, at(host.data()), 1)) == kBounds);
    CHECK(wait(sim.stream->write32(memory, 1)) == kBounds);
    CHECK(wait(sim.stream->wait32(memory, 1)) == kBounds);
    CHECK(wait(sim.stream->record()) == kOk);

    const auto waiting = sim.stream->wait32(gate, 2);
    REQUIRE(sim.device().free(gate) == kOk);
    CHECK(wait(waiting) == kBounds);
}

TEST_CASE("sim: destroying a stream drains it") {
    Sim sim;
    constexpr size_t nbytes = 1 << 20;
    const uint64_t memory = alloc(sim.device(), nbytes);
    const Bytes sent = pattern(nbytes, 8);
    Bytes received(nbytes);
    std::vector<std::shared_ptr<Event>> events;
    events.reserve(21);
    for (int i = 0; i < 20; ++i) {
        events.push_back(copy(*sim.stream, memory, at(sent.data()), nbytes));
    }
    events.push_back(copy(*sim.stream, at(received.data()), memory, nbytes));
    sim.stream.reset();
    for (const auto& event : events) {
        CHECK(event->query() == EventState::done);
    }
    CHECK(received == sent);
}

TEST_CASE("sim: destroying a stream breaks a wait off, and what stands behind it does not run") {
    Sim sim;
    uint32_t word = 0;
    uint32_t target = 0;
    const auto before = sim.stream->write32(at(&target), 1);
    const auto waiting = sim.stream->wait32(at(&word), 1);
    const auto behind = sim.stream->write32(at(&target), 2);
    CHECK(wait(before) == kOk);
    sim.stream.reset();
    CHECK(waiting->outcome() == kLost);
    CHECK(behind->outcome() == kLost);
    CHECK(target == 1);
}

TEST_CASE("sim: destroying a stream cuts a delay short") {
    Sim sim;
    sim.driver->delay(0, UINT64_MAX, 1); // far longer than any test may take
    const uint64_t memory = alloc(sim.device(), 100);
    const Bytes sent = pattern(100, 2);
    const auto event = copy(*sim.stream, memory, at(sent.data()), 100);
    sim.stream.reset();
    CHECK(event->outcome() == kOk);
    sim.driver->delay(0, 0, 0);
    auto reader = sim.device().stream();
    CHECK(fetch(*reader, memory, 100) == sent);
}

TEST_CASE("sim: streams and memory outlive the driver's handle") {
    auto sim = std::make_unique<Sim>();
    const uint64_t memory = alloc(sim->device(), 100);
    auto stream = std::move(sim->stream);
    sim.reset();
    const Bytes sent = pattern(100, 4);
    put(*stream, memory, sent);
    CHECK(fetch(*stream, memory, 100) == sent);
}

TEST_CASE("sim: injected allocation failures") {
    Sim sim;
    sim.driver->inject(0, SimFault::alloc, 2);
    uint64_t address = 0;
    CHECK(sim.device(0).alloc(64, address) == kAllocFailed);
    CHECK(sim.device(1).alloc(64, address) == kOk);
    CHECK(sim.device(0).alloc(64, address) == kAllocFailed);
    CHECK(sim.device(0).alloc(64, address) == kOk);
    sim.driver->inject(0, SimFault::alloc, 5);
    sim.driver->inject(0, SimFault::alloc, 0);
    CHECK(sim.device(0).alloc(64, address) == kOk);
    sim.driver->inject(9, SimFault::lost, 1); // no such device
    sim.driver->inject(-1, SimFault::lost, 1);
    sim.driver->delay(9, 1, 1);
    CHECK(sim.device(1).alloc(64, address) == kOk);
}

TEST_CASE("sim: injected copy failures") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 100);
    const Bytes old = pattern(100, 1);
    const Bytes fresh = pattern(100, 2);
    put(*sim.stream, memory, old);
    sim.driver->inject(0, SimFault::copy, 2);
    auto other = sim.device(1).stream();
    CHECK(wait(copy(*other, memory, memory, 0)) == kOk); // the other device is well
    CHECK(wait(copy(*sim.stream, memory, at(fresh.data()), 100)) == kCopyFailed);
    CHECK(wait(sim.stream->record()) == kOk); // only copies fail
    CHECK(wait(copy(*sim.stream, memory, at(fresh.data()), 100)) == kCopyFailed);
    CHECK(fetch(*sim.stream, memory, 100) == old);
    put(*sim.stream, memory, fresh);
    CHECK(fetch(*sim.stream, memory, 100) == fresh);
}

TEST_CASE("sim: a lost device fails everything, pending and later") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 4096);
    uint32_t word = 0;
    Bytes host(4096);
    auto delayed = sim.device().stream();
    const auto waiting = sim.stream->wait32(at(&word), 1);
    const auto behind = copy(*sim.stream, at(host.data()), memory, 4096);
    sim.driver->delay(0, UINT64_MAX, 0);
    const auto slow = copy(*delayed, at(host.data()), memory, 4096);
    sim.driver->inject(0, SimFault::lost, 0);
    CHECK(wait(waiting) == kLost);
    CHECK(wait(behind) == kLost);
    CHECK(wait(slow) == kLost);
    CHECK(host == Bytes(4096));
    CHECK(wait(copy(*sim.stream, at(host.data()), memory, 1)) == kLost);
    CHECK(wait(sim.stream->write32(at(&word), 1)) == kLost);
    CHECK(wait(sim.stream->wait32(at(&word), 0)) == kLost);
    CHECK(wait(sim.stream->record()) == kLost);
    CHECK(word == 0);
    uint64_t address = 0;
    CHECK(sim.device().alloc(64, address) == kLost);
    CHECK(sim.device().stream() == nullptr);
    CHECK(sim.device().free(memory) == kOk);
    CHECK(wait(sim.device(1).stream()->record()) == kOk);
    CHECK(sim.device(1).alloc(64, address) == kOk);
}

TEST_CASE("sim: a delay holds the copy and its bytes back, by time or by bandwidth") {
    for (const bool by_bandwidth : {false, true}) {
        CAPTURE(by_bandwidth);
        Sim sim;
        const size_t nbytes = (by_bandwidth ? size_t{64} << 20 : size_t{3} << 20) + 5;
        const uint64_t memory = alloc(sim.device(), nbytes);
        const Bytes sent = pattern(nbytes, 6);
        sim.driver->delay(0, by_bandwidth ? 0 : 100'000, by_bandwidth ? 1000 : 0);
        put(*sim.stream, memory, sent);
        Bytes received(nbytes);
        if (by_bandwidth) {
            sim.driver->delay(0, 0, 1); // the copy takes a minute, and moves its last MiB last
        } else {
            sim.driver->delay(0, UINT64_MAX, 0);
        }
        const auto held = copy(*sim.stream, at(received.data()), memory, nbytes);
        const auto behind = sim.stream->record();
        const auto other = sim.device().stream();
        CHECK(wait(other->record()) == kOk); // only copies are delayed
        CHECK(held->query() == EventState::pending);
        CHECK(behind->query() == EventState::pending);
        sim.driver->inject(0, SimFault::lost, 1);
        CHECK(wait(held) == kLost);
        CHECK(wait(behind) == kLost);
        const auto late = by_bandwidth ? received.end() - (1 << 20) : received.begin();
        CHECK(std::all_of(late, received.end(), [](uint8_t byte) { return byte == 0; }));
    }
}

TEST_CASE("sim: many threads share devices and one stream") {
    Sim sim;
    constexpr unsigned workers = 8;
    constexpr unsigned rounds = 150;
    std::atomic<unsigned> wrong{0};
    std::vector<std::thread> threads;
    threads.reserve(workers);
    for (unsigned worker = 0; worker < workers; ++worker) {
        threads.emplace_back([&, worker] {
            // doctest's checks are not for worker threads; failures are counted and checked at the end.
            const auto expect = [&](bool good) { wrong += good ? 0 : 1; };
            const auto finished = [](const std::shared_ptr<Event>& event) {
                while (event->query() == EventState::pending) {
                    std::this_thread::yield();
                }
                return event->outcome();
            };
            Device& device = *sim.devices[worker % 2];
            auto own = device.stream();
            for (unsigned round = 0; round < rounds; ++round) {
                Stream& stream = round % 3 == 0 ? *sim.stream : *own;
                const size_t nbytes = 1 + (worker * 977 + round * 131) % 20000;
                uint64_t memory = 0;
                if (!device.alloc(nbytes, memory).ok()) {
                    expect(false);
                    return;
                }
                expect(sim.driver->describe(memory + nbytes / 2).size == nbytes);
                const Bytes sent = pattern(nbytes, worker * 1000 + round);
                Bytes received(nbytes);
                const auto in = copy(stream, memory, at(sent.data()), nbytes);
                const auto out = copy(stream, at(received.data()), memory, nbytes);
                expect(finished(out).ok());
                expect(finished(in).ok());
                expect(received == sent);
                expect(sim.driver->register_host(received.data(), nbytes, accel::HostPages::writable).ok());
                expect(sim.driver->unregister_host(received.data()).ok());
                expect(device.free(memory).ok());
                if (round % 16 == 15) {
                    own = device.stream();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(wrong == 0);
}

TEST_CASE("sim: freeing under running copies is an error of the event at worst") {
    Sim sim;
    constexpr size_t nbytes = 1 << 20;
    Bytes host(nbytes);
    for (int round = 0; round < 100; ++round) {
        const uint64_t memory = alloc(sim.device(), nbytes);
        const auto event = copy(*sim.stream, memory, at(host.data()), nbytes);
        REQUIRE(sim.device().free(memory) == kOk);
        const Outcome outcome = wait(event);
        CHECK((outcome == kOk || outcome == kBounds));
    }
}

TEST_CASE("sim: losing a device while threads use it") {
    Sim sim;
    const uint64_t memory = alloc(sim.device(), 4096);
    std::atomic<bool> went_wrong{false};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int worker = 0; worker < 4; ++worker) {
        threads.emplace_back([&] {
            Bytes host(4096);
            const auto own = sim.device().stream();
            if (own == nullptr) {
                return;
            }
            for (;;) {
                const auto event = copy(*own, at(host.data()), memory, 4096);
                while (event->query() == EventState::pending) {
                    std::this_thread::yield();
                }
                if (!event->outcome().ok()) {
                    went_wrong = went_wrong || !(event->outcome() == kLost);
                    return;
                }
            }
        });
    }
    std::this_thread::sleep_for(5ms);
    sim.driver->inject(0, SimFault::lost, 1);
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK_FALSE(went_wrong);
    CHECK(sim.device().stream() == nullptr);
}

} // namespace test_sim_faults
