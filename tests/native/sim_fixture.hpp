// Defines the tools of the sim driver's tests: outcomes by name, blocking forms of the stream's calls, and the fixture.
//
// Nothing here asserts how long something takes. Waits have a limit only so that a failure is a failed test, not a
// hanging one.
#pragma once

#include "accel/sim/sim.hpp"
#include "patience.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace zerohop::accel::test {

inline constexpr Outcome kOk{};
inline constexpr Outcome kBounds{Status::access_denied, Reason::bounds};
inline constexpr Outcome kInPart{Status::unsupported, Reason::host_registered};
inline constexpr Outcome kLost{Status::device_error, Reason::device_lost};
inline constexpr Outcome kCopyFailed{Status::device_error, Reason::copy_failed};
inline constexpr Outcome kAllocFailed{Status::no_memory, Reason::alloc_failed};

using Bytes = std::vector<uint8_t>;

inline uint64_t at(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

inline Outcome wait(const std::shared_ptr<Event>& event) {
    REQUIRE(event != nullptr);
    const auto limit = std::chrono::steady_clock::now() + patience(std::chrono::seconds(20));
    while (event->query() == EventState::pending) {
        if (std::chrono::steady_clock::now() > limit) {
            return {Status::pending, Reason::none};
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    CHECK((event->query() == EventState::done) == event->outcome().ok());
    return event->outcome();
}

inline std::shared_ptr<Event> copy(Stream& stream, uint64_t dst, uint64_t src, size_t nbytes) {
    const CopySegment segment{dst, src, nbytes};
    return stream.copy({&segment, 1});
}

inline uint64_t alloc(Device& device, size_t nbytes) {
    uint64_t address = 0;
    REQUIRE(device.alloc(nbytes, address) == kOk);
    REQUIRE(address != 0);
    return address;
}

// Makes bytes without a period, so that none can be mistaken for its neighbours. It makes a word at a time, because the
// tests need gigabytes, and a sanitizer checks every access.
inline Bytes pattern(size_t nbytes, unsigned seed) {
    Bytes bytes(nbytes);
    uint64_t state = seed;
    for (size_t i = 0; i < nbytes; i += sizeof(uint64_t)) {
        state += 0x9E3779B97F4A7C15U; // splitmix64
        uint64_t word = (state ^ (state >> 30U)) * 0xBF58476D1CE4E5B9U;
        word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
        word ^= word >> 31U;
        std::memcpy(bytes.data() + i, &word, std::min(sizeof word, nbytes - i));
    }
    return bytes;
}

inline Bytes fetch(Stream& stream, uint64_t address, size_t nbytes) {
    Bytes bytes(nbytes);
    REQUIRE(wait(copy(stream, at(bytes.data()), address, nbytes)) == kOk);
    return bytes;
}

inline void put(Stream& stream, uint64_t address, const Bytes& bytes) {
    REQUIRE(wait(copy(stream, address, at(bytes.data()), bytes.size())) == kOk);
}

inline uint32_t load(uint32_t& word) {
    return std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
}
inline void store(uint32_t& word, uint32_t value) {
    std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

inline int open_descriptors() {
    DIR* directory = ::opendir("/proc/self/fd");
    REQUIRE(directory != nullptr);
    int count = 0;
    while (::readdir(directory) != nullptr) {
        ++count;
    }
    ::closedir(directory);
    return count;
}

struct Sim {
    explicit Sim(int count = 2) : driver(make_sim_driver(count)), devices(driver->devices()) {
        stream = devices.at(0)->stream();
        REQUIRE(stream != nullptr);
    }
    Device& device(size_t index = 0) { return *devices.at(index); }

    std::shared_ptr<SimDriver> driver;
    std::vector<std::shared_ptr<Device>> devices;
    std::unique_ptr<Stream> stream;
};

// Runs `body` in a forked child and returns how the child ended, as waitpid says it.
template <typename Body> int in_child(Body body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        // Sanitizers catch SIGSEGV to report it; here it is the expected end.
        ::signal(SIGSEGV, SIG_DFL);
        ::alarm(static_cast<unsigned>(patience(std::chrono::seconds(20)) / std::chrono::seconds(1)));
        body();
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}

} // namespace zerohop::accel::test
