// How a Queue lies in memory, and how an entry of its FIFO is encoded: what kernels and the host agree upon.
//
// The header needs no other, so that NVRTC, nvcc, hipcc and every compiler of the host take it. Addresses are 64-bit
// words, because the same memory has them on the host and on a device.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ZEROHOP_DEVICE_FN __host__ __device__ inline
#else
#define ZEROHOP_DEVICE_FN inline
#endif

namespace zerohop::device {

using Word = unsigned long long;
static_assert(sizeof(Word) == 8);

// Stands at the beginning of a Queue. Changes with everything below, so that a kernel of another version is refused.
constexpr Word kLayout = 0x7a65726f686f7006;

// How a peer's memory is reached.
constexpr Word kPeer = 0;  // by loads and stores
constexpr Word kProxy = 1; // by entries that the host takes out and posts
constexpr Word kMlx5 = 2;  // by requests in the form of mlx5 NICs, on a queue pair that only kernels post to

// The statuses that waits return; words of state hold the same numbers.
constexpr Word kOk = 0;
constexpr Word kTimedOut = 1;
constexpr Word kPeerLost = 2;
constexpr Word kFailed = 3; // an entry was refused, or its transfer failed: the host tells why
constexpr Word kClosed = 4;

// A bit of `posted`, `ended` and the copy of `ended`: a call or a transfer to the peer has failed; its state tells how.
constexpr Word kFailure = Word(1) << 63;
// A bit of a copy of a counter of the host: one kernel polls that counter, and writes to the copy.
constexpr Word kPolled = Word(1) << 62;

constexpr Word kRead = 1;
constexpr Word kWrite = 2;

struct Peer {
    Word mode;
    // kPeer: where kernels reach it; kProxy: where it begins in what the peer has shared; kMlx5: its address there.
    Word base;
    Word nbytes;
    Word rights;
    // Address of the index behind the last entry that kernels have posted to it; in memory of the device.
    Word posted;
    // Address of the index behind its last entry that, like all before it, has ended and can be seen there; the host
    // writes it. kMlx5: address of its Pair.
    Word ended;
    Word state;      // address of its state; the host and kernels write it
    Word ended_copy; // address of the copy that kernels keep of `ended`; in memory of the device
};
static_assert(sizeof(Peer) == 64);

struct Local {
    Word base;
    Word nbytes;
    Word rights;
    Word on_host; // 1: memory of the host, while the kernels run on a device
};
static_assert(sizeof(Local) == 32);

constexpr unsigned kPeerBits = 9;
constexpr unsigned kLocalBits = 8;
constexpr Word kMaxPeers = Word(1) << kPeerBits;
constexpr Word kNoPeer = ~Word(0);
constexpr Word kMaxLocals = Word(1) << kLocalBits;

struct Queue {
    Word layout; // kLayout
    Word peer_count;
    Word local_count;
    Word results;    // address of the first Result
    Word fifo;       // address of its first entry
    Word slots;      // of the FIFO, a power of two; as many results
    Word head;       // address of the index of the next entry; in memory of the device
    Word taken_copy; // address of the copy that kernels keep of `taken`; in memory of the device
    Word taken;      // address of the number of entries that the host has taken out
    Word state;      // address of the state of the whole Queue
    Word timeout_ns; // of every wait
    Word padding[5]; // the tables begin at a cache line
    // Tables of one size: where an entry lies is known without a load. Those that are not used are zero, and have no
    // rights.
    Local locals[kMaxLocals];
    Peer peers[kMaxPeers];
};
static_assert(sizeof(Queue) == 128 + kMaxLocals * sizeof(Local) + kMaxPeers * sizeof(Peer));

// Holds the value that an atomic has found, at its entry's index in the ring of results. The kernel that reads it frees
// the place.
struct Result {
    Word value;
    Word number; // the index of the entry, plus one; 0: the place is free
};
static_assert(sizeof(Result) == 16);

// --- entries ---------------------------------------------------------------------------------------------------------
// An entry is two words. The highest bit of each tells in which lap of the FIFO it was written, so that a word that is
// not written yet is told from one that is, in any order, and no slot is ever cleared.
struct Entry {
    Word first;
    Word second;
};
static_assert(sizeof(Entry) == 16);

enum class Op : unsigned {
    none = 0,
    put = 1,
    get = 2,
    set = 3,       // an 8-byte store, after all that was posted to the peer before
    add = 4,       // an 8-byte atomic addition, likewise
    fetch_add = 5, // the same, and what it has found goes to the results
    compare = 6,   // the value that the compare_swap of the next entry compares with
    compare_swap = 7,
    fence = 8, // nothing later begins before all that was posted to the peer has ended
};

constexpr unsigned kOffsetBits = 40; // 1 TiB
constexpr unsigned kLengthBits = 24;
constexpr Word kMaxOffset = Word(1) << kOffsetBits;
constexpr Word kMostBytes = Word(1) << (kLengthBits - 1); // of one entry; longer transfers are several
constexpr Word kLap = Word(1) << 63;

// first: lap 63, op 59, peer 50, the place in the peer's memory 10, and below that
//   put, get: the local 2, the lowest bits of the length 0;  else: the highest bit of the value 0.
// second: lap 63, and below that
//   put, get: the place in the local 22, the rest of the length 0;  else: the lower bits of the value 0.
constexpr unsigned kOpAt = 59;
constexpr unsigned kPeerAt = 50;
constexpr unsigned kPlaceAt = 10;
constexpr unsigned kLocalAt = 2;
constexpr unsigned kSourceAt = 22;

ZEROHOP_DEVICE_FN constexpr Word lap_of(Word index, Word slots) {
    return (index & slots) == 0 ? kLap : 0; // memory begins as zero, and the first lap has ones
}
ZEROHOP_DEVICE_FN constexpr Word head_of(Op op, Word peer, Word place) {
    return Word(op) << kOpAt | peer << kPeerAt | place << kPlaceAt;
}
ZEROHOP_DEVICE_FN constexpr Entry transfer_entry(Op op, Word peer, Word place, Word local, Word source, Word nbytes) {
    return {head_of(op, peer, place) | local << kLocalAt | (nbytes & 3), source << kSourceAt | nbytes >> 2};
}
ZEROHOP_DEVICE_FN constexpr Entry value_entry(Op op, Word peer, Word place, Word value) {
    return {head_of(op, peer, place) | value >> 63, value & ~kLap};
}

} // namespace zerohop::device
