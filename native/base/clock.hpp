// Reads the one clock for deadlines and durations: CLOCK_MONOTONIC in nanoseconds, as Python's time.monotonic_ns().
#pragma once

#include <cstdint>
#include <ctime>

namespace zerohop {

inline constexpr uint64_t kMicrosecond = 1'000;
inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSecond = 1'000'000'000;

inline uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * kSecond + static_cast<uint64_t>(t.tv_nsec);
}

} // namespace zerohop
