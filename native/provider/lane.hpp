// Plain values that a lane tells of itself.
#pragma once

#include "base/clock.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zerohop {

// Time until poll() looks again at something that wakes nobody: the end of a device's copy, or completions of a lane
// that was being posted to.
inline constexpr uint64_t kDeviceInterval = 50 * kMicrosecond;

// The costs of a lane: the path of a transfer is chosen elsewhere, from the limits of all lanes.
struct Limits {
    uint64_t max_message = UINT64_MAX;
    uint32_t alignment = 1;
    double fixed_us = 0;
    double gbps = 0; // gigabytes a second
};

// Holds the data that one end of a lane needs to connect to the other: bytes, and file descriptors if the fabric passes
// them.
struct Address {
    std::string bytes;
    std::vector<int> fds; // borrowed
};

// The result of a poll(). A lane that rests can get new work only from a post() or from a device, never from a peer
// that writes into shared memory.
enum class Progress : uint8_t { rests, none, made };

// The work that a lane has left, for the thread that decides whether somebody must poll, and when.
struct Backlog {
    bool ready = false;               // poll() would do something now
    bool sendable = false;            // poll() would go on with what was posted, without a word from the peer
    bool stalled = false;             // more can be sent once what was sent has ended: that end must be noticed
    bool in_device = false;           // a device still works for this lane: its end must be noticed in the end
    uint64_t look_in_ns = UINT64_MAX; // poll() must run by then, because what it waits for wakes nobody
};

using Statistics = std::map<std::string, uint64_t>;

} // namespace zerohop
