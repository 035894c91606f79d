// One stream of a lane and the copies that are queued on it, in their order.
#pragma once

#include "accel/driver.hpp"
#include "engine/operation.hpp"
#include "engine/sync.hpp"
#include "memory/page_list.hpp"
#include "memory/region.hpp"
#include "provider/p2p/notify_rings.hpp"
#include "provider/p2p/peer_memory.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

namespace zerohop::p2p {

// A copy that a device carries out, and what it needs until that is done.
struct PeerCopy {
    OpRef op;
    uint64_t epoch = 0;
    Pin<Region> local;
    Pin<PeerMemory> remote;
    uint64_t nbytes = 0;
    std::shared_ptr<accel::Event> event;
    NotifyOutbox::Ticket ticket; // a slot where it is announced
    uint64_t began_ns = 0;
    uint64_t expected_ns = 0; // when it is likely to have ended
};

class CopyQueue {
public:
    CopyQueue(std::unique_ptr<accel::Stream> stream, int device, uint32_t ring, double gbps)
        : stream_(std::move(stream)), device_(device), ring_(ring), bytes_per_ns_(gbps) {}

    [[nodiscard]] int device() const { return device_; }

    SpinLock& lock() { return lock_; }
    // With the lock held.
    [[nodiscard]] accel::Stream& stream() { return *stream_; }
    [[nodiscard]] uint32_t ring() const { return ring_; }
    [[nodiscard]] size_t size() const { return copies_.size(); }
    void push(PeerCopy copy, uint64_t now);
    // Moves copies that have ended to `ended`, the oldest first.
    void reap(std::vector<PeerCopy>& ended);
    // Of an operation, where it is the last that is queued here; else null.
    [[nodiscard]] const accel::Event* event_of_last(const OpRef& op) const;
    template <class F> void each(F&& f) {
        for (PeerCopy& copy : copies_) {
            f(copy);
        }
    }

    // Without the lock.
    [[nodiscard]] bool busy() const { return pending_.load(std::memory_order_acquire) != 0; }
    // Is any of it announced to the peer?
    [[nodiscard]] bool announces() const { return announced_.load(std::memory_order_acquire) != 0; }
    // When the oldest copy is likely to end; meaningful while busy().
    [[nodiscard]] uint64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }

private:
    void learn(const PeerCopy& copy, uint64_t now);

    SpinLock lock_;
    std::unique_ptr<accel::Stream> stream_;
    const int device_;
    const uint32_t ring_; // of the peer, that this stream writes
    std::deque<PeerCopy> copies_;
    std::atomic<size_t> pending_{0};
    std::atomic<size_t> announced_{0};
    std::atomic<uint64_t> expected_ns_{0};
    uint64_t free_ns_ = 0; // when the last copy is likely to end
    double bytes_per_ns_;  // which is GB/s
};

} // namespace zerohop::p2p
