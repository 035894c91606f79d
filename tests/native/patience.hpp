// Scales how long native tests wait for things that should come at once: the setting ZEROHOP_TEST_PATIENCE, 1 unless
// set, multiplies every limit. No limit measures the machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

inline std::chrono::nanoseconds patience(std::chrono::nanoseconds limit) {
    static const double scale = [] {
        const char* setting = std::getenv("ZEROHOP_TEST_PATIENCE");
        return setting == nullptr ? 1.0 : std::strtod(setting, nullptr);
    }();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(limit * scale);
}

// Scales a limit in nanoseconds, as the engine takes it.
inline uint64_t patience_ns(uint64_t limit) {
    return static_cast<uint64_t>(patience(std::chrono::nanoseconds(limit)).count());
}
