// A ring of bytes in shared memory: one producer in one process, one consumer in another (or the same).
//
// The consumer creates it. Its data is mapped twice in a row, so that no piece ever wraps around. Neither side trusts
// the other's index: a value that cannot be is the end of the lane, not of the process.
#pragma once

#include "base/descriptor.hpp"
#include "base/status.hpp"
#include "operation/presence.hpp"
#include "provider/framed/tuning.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/uio.h>

namespace zerohop::framed {

// Shared between processes: fixed layout, one cache line per writer.
struct RingIndices {
    alignas(64) std::atomic<uint64_t> tail;             // bytes ever produced
    alignas(64) std::atomic<uint64_t> head;             // bytes ever consumed
    alignas(64) std::atomic<uint32_t> producer_waiting; // the producer sleeps until there is room
    alignas(64) std::atomic<uint32_t> closed;           // either side is gone for good
};

class RingMemory {
public:
    // Makes a new ring, or maps the peer's (duplicates the descriptor; throws NativeError if it is no ring).
    RingMemory();
    explicit RingMemory(int fd);

    RingIndices& indices() const { return *indices_; }
    std::byte* at(uint64_t position) const { return data_ + position % kRingBytes; }
    int fd() const { return fd_.get(); }

private:
    void map();
    Descriptor fd_;
    std::shared_ptr<void> pages_;
    RingIndices* indices_ = nullptr;
    std::byte* data_ = nullptr;
};

class RingProducer {
public:
    explicit RingProducer(int fd) : memory_(fd) {}
    // Copies what fits and publishes it, a part at a time so that the consumer starts early. Both are as in ByteStream.
    [[nodiscard]] size_t send(std::span<const iovec> pieces, const PeerPresence* consumer);
    [[nodiscard]] bool has_room() const;
    void set_waiting(bool waiting) { memory_.indices().producer_waiting.store(waiting ? 1 : 0); }
    [[nodiscard]] bool closed() const { return memory_.indices().closed.load(std::memory_order_acquire) != 0; }
    [[nodiscard]] bool corrupt() const { return corrupt_.load(std::memory_order_relaxed); }
    void close() { memory_.indices().closed.store(1); }

private:
    RingMemory memory_;
    std::atomic<uint64_t> tail_{0}; // read by threads that only look; written with the lane's lock held
    uint64_t head_seen_ = 0;
    std::atomic<bool> corrupt_{false};
};

class RingConsumer {
public:
    [[nodiscard]] size_t receive(std::span<const iovec> pieces, bool streaming, const PeerPresence* producer);
    [[nodiscard]] bool has_data() const { return memory_.indices().tail.load(std::memory_order_seq_cst) != head_; }
    [[nodiscard]] bool closed() const { return memory_.indices().closed.load(std::memory_order_acquire) != 0; }
    [[nodiscard]] bool corrupt() const { return corrupt_.load(std::memory_order_relaxed); }
    void close() { memory_.indices().closed.store(1); }
    int fd() const { return memory_.fd(); }

private:
    RingMemory memory_;
    std::atomic<uint64_t> head_{0}; // read by threads that only look; written by the poller
    std::atomic<bool> corrupt_{false};
};

} // namespace zerohop::framed
