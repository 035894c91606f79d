// Knows what the entries of kernels may ask for, and which of them wait for earlier ones.
#pragma once

#include "base/status.hpp"
#include "device/entries.hpp"

#include <cstdint>
#include <vector>

namespace zerohop::device {

inline constexpr uint64_t kWordBytes = 8; // of signals and atomics

struct LocalFacts {
    uint64_t offset = 0; // in its region
    uint64_t nbytes = 0;
    uint8_t rights = 0;
};

struct PeerFacts {
    uint64_t offset = 0; // in its share
    uint64_t nbytes = 0;
    uint8_t rights = 0;
    // Has one route for each local, and last the one for signals. That begins in the scratch memory, also where it is a
    // route of other memory, which says which device copies. Empty: kernels reach the memory by themselves.
    std::vector<uint64_t> routes;
    bool needs_flush = false; // bytes that these routes carry are visible only after a flush of their lanes
};

// Says whether an entry lies within both memories, and within the rights to them.
[[nodiscard]] Outcome check(const Decoded& entry, const PeerFacts& peer, const std::vector<LocalFacts>& locals);

// Tells whether an entry begins only when all that was posted to its peer before has ended.
[[nodiscard]] inline bool waits_for_earlier(Op op) {
    return op != Op::put && op != Op::get && op != Op::compare;
}

[[nodiscard]] inline bool gives_result(Op op) {
    return op == Op::fetch_add || op == Op::compare_swap;
}

} // namespace zerohop::device
