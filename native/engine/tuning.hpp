// The numbers that tune the engine: how long somebody spins, sleeps or waits, and why so long. All times in
// nanoseconds.
#pragma once

#include "base/clock.hpp"

#include <cstdint>

namespace zerohop {

// --- spinning ---

// Deadlines, peers' lives and heartbeats are looked at so often by the thread that polls. A peer's death is then known
// within a few milliseconds, and the look costs a thousandth of the time.
inline constexpr uint64_t kTick = kMillisecond;
// A thread that spins lets others run for the first time after so long. A peer that spins, too, answers much sooner.
inline constexpr uint64_t kFirstYield = 20 * kMicrosecond;
inline constexpr int kTurnSpins = 200; // tries for the right to poll, some ten microseconds, when its holder will leave

// --- callers that come and go ---

inline constexpr uint64_t kSoon = kMillisecond; // a caller that comes back within this time is likely to do so again
inline constexpr int kLate = 2;                 // so many callers in a row that come later are no streak
// The progress thread waits so long for the next caller before it arms devices. Arming is a system call and an
// interrupt for each message, which a caller that polls makes useless.
inline constexpr uint64_t kStreak = 5 * kMillisecond;
// After a kick the progress thread sleeps for no longer than this until one such sleep has passed: operations that come
// one after the other need not kick again.
inline constexpr uint64_t kLinger = 5 * kMillisecond;
// An event loop that a message wakes gets so much of a start over the progress thread: about what it takes to wake a
// thread on another processor.
inline constexpr uint64_t kLoopFirst = 100 * kMicrosecond;

// --- sleeping ---

// Peers on this host are looked at so often while an operation pends that somebody waits for, and nobody spins.
inline constexpr uint64_t kPresenceInterval = 5 * kMillisecond;
// Operations that nobody waits for, and whose end no device tells, are looked at so often: a deadline may pass, memory
// may be asked back.
inline constexpr uint64_t kUnattended = 50 * kMillisecond;
// A sleep between two such looks. It is shorter because a post counts kUnattended from its own start: a sleep that
// began during a post of up to the difference is then cut neither by this post nor by the next one.
inline constexpr uint64_t kUnattendedSleep = 40 * kMillisecond;
// The kernel wakes a thread later than after so long. Instead of sleeping, the thread polls.
inline constexpr uint64_t kShortSleep = 20 * kMicrosecond;

// Passes of 256 KiB that take everything that a lane may have buffered when its peer goes.
inline constexpr int kLastPasses = 64;

} // namespace zerohop
