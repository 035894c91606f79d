// The numbers that tune the framed protocol and its ring, and why they are what they are. Sizes are in bytes.
//
// Both ends of a lane check what the other sends against the first group, so that they must agree on it.
#pragma once

#include "memory/copy.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop::framed {

// --- limits of the protocol ---

// A frame carries no more than a pass of the poller moves, so that no operation waits for the whole of another.
inline constexpr uint32_t kMaxPayload = kSliceBytes;
// Page numbers in one frame of a write: their table is then 4 KiB long.
inline constexpr uint32_t kMaxPagesPerWrite = 512;
// Words in the table of any frame: 64 KiB, which the receiver buffers before it checks them.
inline constexpr uint32_t kMaxTable = 8192;
// Messages up to this size travel at once and are copied once more by the receiver; longer ones wait for its buffer.
inline constexpr uint32_t kEagerBytes = 8 * 1024;
// Messages in one frame: the receiver keeps each by itself, which takes more than the bytes of a short one.
inline constexpr uint64_t kMostPacked = 256;
// These bound the memory that a peer can make this end spend:
inline constexpr uint32_t kWindow = 1024;      // requests in flight on a lane, each way
inline constexpr uint32_t kCredits = 4096;     // notifications in flight on a lane to one queue, each way
inline constexpr uint32_t kMaxUnmatched = 256; // messages that wait for their recv
inline constexpr uint32_t kMaxAnswers = 8192;  // queued for a peer that does not read them: its window needs fewer
// Page lists of reads that a peer has asked for and that have not been answered: a lane's as many as its window allows,
// and for all lanes of a Context together, so that many peers cannot take what one may.
inline constexpr uint64_t kMostKeptOfLane = uint64_t{kWindow} * kMaxTable * 8;
inline constexpr uint64_t kMostKept = 2 * kMostKeptOfLane;

// --- sending and receiving ---

// Table and payload of a frame that is copied into the queue as one piece: four cache lines, cheaper than a Transfer.
inline constexpr size_t kInlineBytes = 256;
inline constexpr size_t kPieces = 64; // of memory, in one call of a stream
// The last piece of host memory is copied before its frame goes out, up to this size. After a longer one comes a frame
// of its own, which says whether the memory was revoked, has moved or was gone meanwhile.
inline constexpr uint32_t kCopiedLast = 4096;
inline constexpr size_t kScrap = 64 * 1024; // the buffer for payload that nobody wants
inline constexpr size_t kStagesAhead = 4;   // copies from a device that run before the frame that needs them
// A credit frame for each notification would double the traffic: credits go back in batches of this size.
inline constexpr uint32_t kCreditBatch = kCredits / 4;

// --- the ring ---

inline constexpr size_t kRingBytes = 1 << 20;     // fits the second-level cache of both cores that it runs between
inline constexpr size_t kPublishBytes = 8 * 1024; // how far behind the other side is, which copies at the same time
inline constexpr size_t kPiecesAhead = 2;         // pieces of a page list that are prefetched: their reads overlap

} // namespace zerohop::framed
