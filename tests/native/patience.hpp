// How long native tests wait for what should come at once: every limit is multiplied by the setting
// ZEROHOP_TEST_PATIENCE, a factor, 1 unless set. No limit is there to measure the machine.
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

// Of a limit as the engine has them, in nanoseconds.
inline uint64_t patience_ns(uint64_t limit) {
    return static_cast<uint64_t>(patience(std::chrono::nanoseconds(limit)).count());
}
