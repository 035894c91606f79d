// Tests the driver of GPUs (fake_cuda, fake_hip) with users' streams: on any device, and while they are captured into a
// graph.
#include "bytes.hpp"
#include "gpu_fixture.hpp"
#include "gpu_user_stream.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace test_gpu_streams {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::test;

namespace {

constexpr Outcome kCapturing{Status::unsupported, Reason::capturing};

template <class F> Outcome refusal(F&& f) {
    try {
        (void)f();
    } catch (const NativeError& error) {
        return error.outcome();
    }
    return {};
}

// Copies like the vendor's driver, but refuses one call.
int calls_until_refusal = 0;
template <class Vendor>
shim::GpuResult copy_or_refuse(shim::GpuAddress dst, shim::GpuAddress src, size_t nbytes, void* stream) {
    constexpr shim::GpuResult kInvalidValue = 1;
    return calls_until_refusal-- == 0 ? kInvalidValue : Vendor::api().copy(dst, src, nbytes, stream);
}

} // namespace

TEST_CASE_TEMPLATE("gpu: a stream follows the user's, and the user's waits for it, on each pair of devices", Vendor,
                   Cuda, Hip) {
    for (const size_t ours : {0, 1}) {
        for (const int theirs : {0, 1}) {
            CAPTURE(ours);
            CAPTURE(theirs);
            Gpu gpu(Vendor::api());
            UserStream<Vendor> user(theirs);
            const auto stream = gpu.devices[ours]->stream();
            REQUIRE(stream != nullptr);
            const uint64_t first = gpu.alloc(kBytes, ours);
            const uint64_t second = gpu.alloc(kBytes, static_cast<size_t>(theirs));
            const std::vector<uint8_t> data = random_bytes(kBytes);
            gpu.copy(first, at(std::vector<uint8_t>(kBytes).data()), kBytes);
            // Nothing begins before the gate is open; then one copy comes after the other.
            const std::shared_ptr<Gate> gate = gpu.driver->gate(theirs, user.number());
            user.copy(second, at(data.data()), kBytes);
            REQUIRE(stream->follow(user.number()).ok());
            const CopySegment there{first, second, kBytes};
            const std::shared_ptr<Event> copied = stream->copy({&there, 1});
            const Held held = held_by(*copied, user.number());
            REQUIRE(held.why.ok());
            CHECK(held.gate != nullptr);
            std::vector<uint8_t> back(kBytes);
            user.copy(at(back.data()), first, kBytes);
            const std::shared_ptr<Event> end = gpu.driver->mark(theirs, user.number());
            CHECK(copied->query() == EventState::pending);
            CHECK(end->query() == EventState::pending);
            gate->open();
            CHECK(ends(*end));
            CHECK(copied->query() == EventState::done);
            CHECK(same_bytes(back, data));
        }
    }
}

TEST_CASE_TEMPLATE("gpu: a stream that is being captured is refused, and neither it nor ours is held up by that",
                   Vendor, Cuda, Hip) {
    for (const int theirs : {0, 1}) {
        CAPTURE(theirs);
        Gpu gpu(Vendor::api());
        UserStream<Vendor> user(theirs);
        UserStream<Vendor> other(theirs);
        const uint64_t memory = gpu.alloc(kBytes);
        const std::vector<uint8_t> data = random_bytes(kBytes);
        // The copy is held up, so that there is something that the other stream could wait for.
        const std::shared_ptr<Gate> gate = gpu.driver->gate(theirs, other.number());
        REQUIRE(gpu.stream->follow(other.number()).ok());
        const CopySegment segment{memory, at(data.data()), kBytes};
        const std::shared_ptr<Event> copied = gpu.stream->copy({&segment, 1});
        user.begin_capture();
        CHECK(gpu.stream->follow(user.number()) == kCapturing);
        CHECK(held_by(*copied, user.number()).why == kCapturing);
        CHECK(refusal([&] { return gpu.driver->gate(theirs, user.number()); }) == kCapturing);
        CHECK(refusal([&] { return gpu.driver->mark(theirs, user.number()); }) == kCapturing);
        CHECK(refusal([&] {
                  gpu.driver->check_stream(theirs, user.number());
                  return 0;
              }) == kCapturing);
        CHECK(refusal([&] { return gpu.devices[static_cast<size_t>(theirs)]->mark(); }) == kCapturing);
        user.end_capture();
        CHECK(copied->query() == EventState::pending);
        gate->open();
        CHECK(ends(*copied));
        CHECK(same_bytes(gpu.read(memory, kBytes), data));
        CHECK(gpu.stream->follow(user.number()).ok());
        CHECK(held_by(*copied, user.number()).why.ok());
        CHECK(ends(*gpu.driver->mark(theirs, user.number())));
    }
}

TEST_CASE_TEMPLATE(
    "gpu: a stream that waits for a copy is let go before that comes to an end, and its word serves others", Vendor,
    Cuda, Hip) {
    for (const int theirs : {0, 1}) {
        CAPTURE(theirs);
        Gpu gpu(Vendor::api());
        UserStream<Vendor> before(theirs);
        const uint64_t memory = gpu.alloc(kBytes);
        const std::vector<uint8_t> data = random_bytes(kBytes);
        const std::shared_ptr<Gate> gate = gpu.driver->gate(theirs, before.number());
        REQUIRE(gpu.stream->follow(before.number()).ok());
        const CopySegment segment{memory, at(data.data()), kBytes};
        const std::shared_ptr<Event> copied = gpu.stream->copy({&segment, 1});
        for (int round = 0; round < 3; ++round) {
            UserStream<Vendor> user(theirs);
            Held held = held_by(*copied, user.number());
            REQUIRE(held.why.ok());
            const std::shared_ptr<Event> end = gpu.driver->mark(theirs, user.number());
            CHECK_FALSE(ends(*end, 10 * kMillisecond));
            if (round == 1) {
                held.gate.reset(); // the destructor opens the gate
            } else {
                held.gate->open();
            }
            CHECK(ends(*end));
            CHECK(copied->query() == EventState::pending);
        }
        gate->open();
        CHECK(ends(*copied));
        // A word that the device has written meanwhile disturbs no later user of it.
        for (int round = 0; round < 20; ++round) {
            UserStream<Vendor> user(theirs);
            const std::shared_ptr<Gate> other = gpu.driver->gate(theirs, user.number());
            const std::shared_ptr<Event> end = gpu.driver->mark(theirs, user.number());
            CHECK_FALSE(ends(*end, kMillisecond));
            other->open();
            CHECK(ends(*end));
        }
        CHECK(same_bytes(gpu.read(memory, kBytes), data));
    }
}

TEST_CASE_TEMPLATE("gpu: a copy of which the driver refuses a part has failed once the rest of it has ended", Vendor,
                   Cuda, Hip) {
    static shim::GpuApi refusing = Vendor::api(); // static, because streams use it as long as the process has any
    refusing.copy = &copy_or_refuse<Vendor>;
    refusing.copy_batch = nullptr;
    for (const bool many : {false, true}) {
        CAPTURE(many);
        Gpu gpu(refusing);
        UserStream<Vendor> user(0);
        const uint64_t memory = gpu.alloc(2 * kBytes);
        const std::vector<uint8_t> data = random_bytes(kBytes);
        const std::shared_ptr<Gate> gate = gpu.driver->gate(0, user.number());
        REQUIRE(gpu.stream->follow(user.number()).ok());
        const std::vector<CopySegment> segments{{memory, at(data.data()), kBytes},
                                                {memory + kBytes, at(data.data()), kBytes}};
        calls_until_refusal = 1;
        const std::shared_ptr<Event> copied = many ? gpu.stream->copy_many(segments, {}) : gpu.stream->copy(segments);
        // A caller that hears of the end may give the memory to others.
        CHECK_FALSE(ends(*copied, 10 * kMillisecond));
        gate->open();
        CHECK(ends(*copied));
        CHECK(copied->query() == EventState::failed);
        CHECK(copied->outcome() == Outcome{Status::device_error, Reason::copy_failed});
        CHECK(same_bytes(gpu.read(memory, kBytes), data));
    }
}

} // namespace test_gpu_streams
