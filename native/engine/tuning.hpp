// The numbers that tune the engine: how long somebody spins, sleeps or waits, and why so long. All times in
// nanoseconds.
#pragma once

#include "base/clock.hpp"

#include <cstdint>

namespace zerohop {

// --- spinning ---

// Time between looks of the polling thread at deadlines, peers' lives and heartbeats. A peer's death is then known
// within a few milliseconds, and the looks cost a thousandth of the time.
inline constexpr uint64_t kTick = kMillisecond;
// Time after which a spinning thread first lets others run. A peer that spins, too, answers much sooner.
inline constexpr uint64_t kFirstYield = 20 * kMicrosecond;
inline constexpr int kTurnSpins = 200; // tries for the right to poll, some ten microseconds, when its holder will leave

// --- callers that come and go ---

inline constexpr uint64_t kSoon = kMillisecond; // a caller that comes back within this time is likely to do so again
inline constexpr int kLate = 2;                 // callers in a row that come later: no streak any more
// Time that the progress thread waits for the next caller before it arms devices. Arming is a system call and an
// interrupt for each message, which a caller that polls makes useless.
inline constexpr uint64_t kStreak = 5 * kMillisecond;
// After a kick the progress thread sleeps for no longer than this until one such sleep has passed: operations that come
// one after the other need not kick again.
inline constexpr uint64_t kLinger = 5 * kMillisecond;
// The start that an event loop that a message wakes gets over the progress thread: about what it takes to wake a thread
// on another processor.
inline constexpr uint64_t kLoopFirst = 100 * kMicrosecond;

// Callers in a row that come back within kQuickly take turns with a peer, as in a ping-pong, or in collectives, between
// which Python works for some 20 µs. The next one is to come sooner than it pays to wake a thread: the progress thread
// looks by itself, every kPause, whether they still do.
inline constexpr uint64_t kQuickly = 150 * kMicrosecond;
inline constexpr int kQuickCallers = 16;
inline constexpr uint64_t kPause = 400 * kMicrosecond;

// --- sleeping ---

// Time between looks at peers on this host while somebody waits for an operation, and nobody spins.
inline constexpr uint64_t kPresenceInterval = 5 * kMillisecond;
// Time between looks at operations that nobody waits for, and whose end no device tells: a deadline may pass, memory
// may be asked back.
inline constexpr uint64_t kUnattended = 50 * kMillisecond;
// A sleep between two such looks. It is shorter because a post counts kUnattended from its own start: a sleep that
// began during a post of up to the difference is then cut neither by this post nor by the next one.
inline constexpr uint64_t kUnattendedSleep = 40 * kMillisecond;
// Time after which a sleeping progress thread looks whether its wake-up was lost, which costs no more than the look.
inline constexpr uint64_t kPieceOfSleep = kSecond;
// Shorter sleeps than this take longer, so the thread polls instead.
inline constexpr uint64_t kShortSleep = 20 * kMicrosecond;

// Passes of 256 KiB that take everything that a lane may have buffered when its peer goes.
inline constexpr int kLastPasses = 64;

} // namespace zerohop
