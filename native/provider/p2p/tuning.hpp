// The numbers that tune copies of devices, and why they are what they are. Times are in nanoseconds, sizes in bytes.
// They were measured on H200s over NVLink, with the driver's copy commands.
#pragma once

#include "base/clock.hpp"
#include "provider/lane.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop::p2p {

// --- queues ---

// From this size on a copy has a stream of its own kind, so that small ones do not wait for it.
inline constexpr uint64_t kLargeBytes = 256 * 1024;
inline constexpr size_t kMaxCopies = 4096; // in flight on one stream: a lane with more is full
// Streams per device, at most, for copies that follow a stream of the user's: two of the user's rarely share one.
inline constexpr uint64_t kFollowers = 4;

// --- gathering small copies into one command ---

inline constexpr uint64_t kMostGathered = 32 * 1024; // larger copies gain little from sharing a command
// Copies that may be held: to launch them takes three microseconds, which is little for each of them then.
inline constexpr size_t kMostHeld = 64;
inline constexpr size_t kEnough = 2; // commands that keep a device busy while somebody waits
// Time for which a copy that nobody waits for is held. A thread that posts one after the other fills a command sooner.
inline constexpr uint64_t kHeldNs = 500 * kMicrosecond;
// Time after its expected end for which the last command is taken to be under way.
inline constexpr uint64_t kLikelyNs = 100 * kMicrosecond;

// --- how long copies take ---

// The rate of a link until a copy has shown it: gigabytes a second, which is bytes a nanosecond.
inline constexpr double kLinkGbps = 300;
// No rate is taken to be higher: memory within one device is copied at about this rate.
inline constexpr double kMostGbps = 4000;
inline constexpr uint64_t kFixedNs = 6000;            // time of a command, however small it is
inline constexpr uint64_t kTellsTheRate = 4ULL << 20; // from this size on a copy shows how fast the link is
inline constexpr double kWeight = 0.25;               // of the newest measurement in the average
// A look at a copy this shortly before its end has seen how long it took.
inline constexpr uint64_t kSeenNs = kDeviceInterval + 10 * kMicrosecond;

// --- sleeping until a copy is likely to end ---
//
// A sleeper that finds the copy ended does not know when that was. Its sleep must not be taken for the copy's time: the
// next sleep would be as long, or longer. Either the sleeper was woken late, which is assumed of the first ones that
// were missed after one whose end was seen, or copies have become faster.

// A sleeper wakes at least this long before the expected end,
inline constexpr uint64_t kEarlyNs = 100 * kMicrosecond;
// by so much earlier after each copy whose end it missed,
inline constexpr uint64_t kLaterNs = 50 * kMicrosecond;
// by so much later after each whose end it saw: one in fifty is missed then,
inline constexpr uint64_t kLessNs = kMicrosecond;
// and never earlier than this, beyond which sleep is worth more than the gain.
inline constexpr uint64_t kMostEarlyNs = 500 * kMicrosecond;
// Missed copies in a row after which the rate is taken to be unknown. The rate is then raised by this factor at least.
inline constexpr int kUnknown = 2;
inline constexpr double kFaster = 1.25;
// Time after its expected end for which a copy is looked at without pause.
inline constexpr uint64_t kLateNs = 50 * kMicrosecond;
// Delay in waking a peer that fell asleep after a copy for it was posted, if nobody here waits for the end.
inline constexpr uint64_t kWakeNs = kMillisecond;

} // namespace zerohop::p2p
