// The numbers that tune the verbs lane, and why they are what they are. Times are in nanoseconds, sizes in bytes. What
// a user may set is in options.hpp instead.
#pragma once

#include "base/clock.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop::verbs {

// --- limits of a lane ---

inline constexpr size_t kMaxRails = 8;
inline constexpr size_t kMaxQueues = 32; // as many as bits in Transfer::queues_used
// Whatever the device's own limit: a message of this size keeps any link busy, and 31 bits count it.
inline constexpr uint64_t kMaxMessage = 1ULL << 30;

// --- posting ---

// Work requests of each queue that are kept for segments and marks, which must not wait for data.
inline constexpr uint32_t kReserve = 16;
inline constexpr size_t kBatch = 32;          // work requests behind one doorbell, and completions that one call takes
inline constexpr uint32_t kMostInline = 1024; // bytes of a request that the device need not fetch
inline constexpr uint32_t kMaxSge = 4;        // local pages of one remote run; more cost every work request more room
// Up to this size an operation stays with the queue pair of the last one: another would gain nothing.
inline constexpr uint64_t kStaysBytes = 16 * 1024;
// Pages no longer than a packet cost mostly what a work request costs, so that they are sorted to share one.
inline constexpr uint64_t kGatheredBytes = 4096;

// --- segments, which carry the framed protocol ---

inline constexpr size_t kSegmentBytes = 8192; // with its header: two packets of the largest MTU
inline constexpr uint32_t kStreamWindow = 16; // segments under way in each direction of a lane
// Receives of the shared queue: twice the window of a lane, for its marks, too; and never fewer than kMinReceives.
inline constexpr uint32_t kReceivesPerLane = 2 * kStreamWindow;
inline constexpr uint32_t kMinReceives = 128;
inline constexpr int kMaxReceives = 4096; // 32 MiB of buffers, for 128 lanes and more
inline constexpr size_t kSendBuffers = 1024;
inline constexpr size_t kSlabBuffers = 64; // buffers that a pool registers each time

// --- completions ---

inline constexpr int kSendEntries = 4096; // work requests of all lanes of a domain that may be under way
// A completion of a lane that is being posted to is put aside. After this time its lock is waited for: a thread that
// posts without a pause hardly ever leaves it free.
inline constexpr uint64_t kPatience = 200 * kMicrosecond;
// Polls between two readings of the device's own events: only a process that never sleeps needs that.
inline constexpr uint32_t kLookForEvents = 1 << 14;
// A device that has lost its link may first report an error of local memory. So its port is looked at, this many times
// within 50 ms, before that is believed.
inline constexpr int kPortLooks = 10;
inline constexpr uint64_t kPortPause = 5 * kMillisecond;

// --- closing ---

// Time in which segments that were sent before a close may be acknowledged.
inline constexpr uint64_t kLastWords = 50 * kMillisecond;
// Further time in which a device must have flushed its queues: then it is asked no more.
inline constexpr uint64_t kFlushed = 100 * kMillisecond;
// Time in which a device may say that a queue pair takes no more receives. Soft-RoCE of Linux 6.1 never says it.
inline constexpr uint64_t kLastReceive = 10 * kMillisecond;

} // namespace zerohop::verbs
