// Runs the driver of GPUs over GPUs in software (fake_cuda, fake_hip), with helpers for its tests.
#pragma once

#include "accel/gpu/gpu_driver.hpp"
#include "accel/idle_calls.hpp"
#include "base/clock.hpp"
#include "base/sync.hpp"
#include "gpu_vendors.hpp"
#include "patience.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace zerohop::test {

using accel::CopySegment;
using accel::Device;
using accel::Event;
using accel::EventState;
using accel::GpuDriver;
using accel::make_gpu_driver;
using accel::Stream;

inline constexpr size_t kBytes = 1 << 20;

inline std::vector<uint8_t> random_bytes(size_t nbytes) {
    static std::mt19937_64 random{std::random_device{}()};
    std::vector<uint8_t> bytes(nbytes);
    std::generate(bytes.begin(), bytes.end(), [] { return static_cast<uint8_t>(random()); });
    return bytes;
}

inline uint64_t at(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

inline bool ends(const Event& event, uint64_t within_ns = patience_ns(10 * kSecond)) {
    const uint64_t limit = now_ns() + within_ns;
    while (event.query() == EventState::pending) {
        if (now_ns() > limit) {
            return false;
        }
        nap_shortly();
    }
    return true;
}

struct Held {
    std::shared_ptr<accel::Gate> gate;
    Outcome why;
};

inline Held held_by(const Event& event, uint64_t native_stream) {
    Held held;
    held.gate = event.hold(native_stream, held.why);
    return held;
}

// Waits until all memory that was freed, unregistered or dropped is gone.
inline void settle() {
    accel::IdleCalls& calls = accel::IdleCalls::of_process();
    REQUIRE(calls.done(calls.last(), patience_ns(10 * kSecond)));
}

struct Gpu {
    explicit Gpu(const shim::GpuApi& api)
        : driver(make_gpu_driver(api)), devices(driver->devices()), stream(devices.at(0)->stream()) {
        // Calls of earlier tests that wait for idle streams must not begin while a test holds a stream up.
        settle();
    }
    ~Gpu() {
        for (const auto& [device, address] : allocated) {
            CHECK(devices.at(device)->free(address).ok());
        }
    }
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    uint64_t alloc(size_t nbytes, size_t device = 0) {
        uint64_t address = 0;
        REQUIRE(devices.at(device)->alloc(nbytes, address).ok());
        allocated.emplace_back(device, address);
        return address;
    }
    void copy(uint64_t dst, uint64_t src, size_t nbytes) const {
        const CopySegment segment{dst, src, nbytes};
        const auto event = stream->copy({&segment, 1});
        REQUIRE(ends(*event));
        REQUIRE(event->query() == EventState::done);
    }
    [[nodiscard]] std::vector<uint8_t> read(uint64_t address, size_t nbytes) const {
        std::vector<uint8_t> bytes(nbytes);
        copy(at(bytes.data()), address, nbytes);
        return bytes;
    }

    std::shared_ptr<GpuDriver> driver;
    std::vector<std::shared_ptr<Device>> devices;
    std::unique_ptr<Stream> stream;
    std::vector<std::pair<size_t, uint64_t>> allocated;
};

} // namespace zerohop::test
