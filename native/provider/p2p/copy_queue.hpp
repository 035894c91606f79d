// One stream of a lane and the copies that are queued on it, in their order.
//
// Small ones that come while others are under way are held, and issued together as one command: a device takes as long
// for a hundred as for one, and the driver much less.
#pragma once

#include "accel/driver.hpp"
#include "base/clock.hpp"
#include "base/page_list.hpp"
#include "base/sync.hpp"
#include "memory/region.hpp"
#include "operation/operation.hpp"
#include "provider/p2p/copy_rates.hpp"
#include "provider/p2p/notify_rings.hpp"
#include "provider/p2p/peer_memory.hpp"
#include "provider/p2p/tuning.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace zerohop::p2p {

// A copy that a device carries out, and what it needs until that is done.
struct PeerCopy {
    OpRef op;
    uint64_t epoch = 0;
    Pin<Region> local;
    Pin<PeerMemory> remote;
    uint64_t nbytes = 0;
    size_t form = 0;                     // of its rate
    std::shared_ptr<accel::Event> event; // null: held
    bool last = true;                    // of its command
    bool reads = false;
    int64_t notify = -1;
    NotifyOutbox::Ticket ticket; // a slot where the device announces it
    Message message;             // for which a slot has no room: a frame announces it
    uint64_t began_ns = 0;       // as far as is known
    uint64_t needs_ns = 0;       // likely
    uint64_t pending_ns = 0;     // when a thread that waits has last seen it pending
};

class CopyQueue {
public:
    CopyQueue(std::unique_ptr<accel::Stream> stream, int device, uint32_t ring, double gbps)
        : stream_(std::move(stream)), device_(device), ring_(ring), rates_(gbps) {
        held_.reserve(kMostHeld);
    }

    [[nodiscard]] int device() const { return device_; }

    SpinLock& lock() { return lock_; }
    // The caller holds the lock.
    [[nodiscard]] accel::Stream& stream() { return *stream_; }
    [[nodiscard]] uint32_t ring() const { return ring_; }
    [[nodiscard]] size_t size() const { return copies_.size(); }
    // Adds a copy that was issued as a command of its own.
    void push(PeerCopy copy, uint64_t now);
    // True if a copy of `nbytes`, which nothing is to follow or precede, is better held: something is likely to be
    // under way.
    [[nodiscard]] bool gathers(uint64_t nbytes, uint64_t now) const {
        const bool busy = !held_.empty() || (!copies_.empty() && now < busy_until_ns_ + kLikelyNs);
        return nbytes <= kMostGathered && busy && stream_->gathers();
    }
    void hold(PeerCopy copy, const accel::CopySegment& segment, uint64_t now);
    // Issues the copies that are held, as one command.
    void issue();
    // Issues them if it is time; `attended`: somebody waits for one of them.
    void issue_when_due(uint64_t now, bool attended);
    // Moves the copies that are held to `dropped`; they are never issued.
    void drop_held(std::vector<PeerCopy>& dropped);
    // Moves copies that have ended to `ended`, the oldest first. `attended`: somebody waits, and looks when CopyQueues
    // says.
    void reap(std::vector<PeerCopy>& ended, bool attended);
    // Returns the event of an operation whose copy is the last one queued here, which it issues; else null.
    [[nodiscard]] const accel::Event* event_of_last(const OpRef& op);
    template <class F> void each(F&& f) {
        for (PeerCopy& copy : copies_) {
            f(copy);
        }
    }

    // Any thread, without the lock.
    [[nodiscard]] bool busy() const { return pending_.load(std::memory_order_acquire) != 0; }
    // True if any of them is announced to the peer.
    [[nodiscard]] bool announces() const { return announced_.load(std::memory_order_acquire) != 0; }
    // Returns when the oldest copy is likely to end; meaningful while busy().
    [[nodiscard]] uint64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }
    // Returns how long before that end a sleeper that waits for it wakes.
    [[nodiscard]] uint64_t early_ns() const { return rates_.early_ns(); }
    // Returns by when the copies that are held must be issued, whether or not somebody waits; UINT64_MAX if there are
    // none.
    [[nodiscard]] uint64_t due_ns() const { return due_ns_.load(std::memory_order_relaxed); }
    // Returns how many copies were issued together with others.
    [[nodiscard]] uint64_t gathered() const { return gathered_.load(std::memory_order_relaxed); }

private:
    void add(PeerCopy copy, uint64_t now, uint64_t fixed_ns);
    void learn(const PeerCopy& copy, uint64_t now);

    SpinLock lock_;
    std::unique_ptr<accel::Stream> stream_;
    const int device_;
    const uint32_t ring_; // the peer's, which this stream writes
    std::deque<PeerCopy> copies_;
    std::vector<accel::CopySegment> held_; // of the last copies in copies_
    size_t commands_ = 0;                  // under way, as far as anybody has looked
    std::atomic<size_t> pending_{0};
    std::atomic<size_t> announced_{0};
    std::atomic<uint64_t> expected_ns_{0};
    std::atomic<uint64_t> due_ns_{UINT64_MAX};
    std::atomic<uint64_t> gathered_{0};
    uint64_t busy_until_ns_ = 0; // when the last copy that was issued is likely to end
    CopyRates rates_;
};

} // namespace zerohop::p2p
