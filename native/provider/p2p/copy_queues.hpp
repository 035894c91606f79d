// The queues of a lane: by device and by kind of copy, so that none waits for what has nothing to do with it.
#pragma once

#include "base/clock.hpp"
#include "memory/accelerators.hpp"
#include "provider/p2p/copy_queue.hpp"
#include "provider/request.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace zerohop::p2p {

class CopyQueues {
public:
    // Kinds of copies, each with a stream of its own; those that follow a stream of the user's have several.
    static constexpr uint64_t kSmall = 0;
    static constexpr uint64_t kLarge = 1;

    explicit CopyQueues(Accelerators& accelerators) : accelerators_(accelerators) {}

    [[nodiscard]] uint64_t kind_of(const Request& request);
    // Returns the queue, made at first use; null, and why, if it cannot be made.
    [[nodiscard]] CopyQueue* of(int device, uint64_t kind, Outcome& outcome);
    [[nodiscard]] bool any_busy() const;
    // Returns how soon a look at them is worth while. Copies that nobody waits for need none: their memory is given
    // back a little later. Those that are announced do, because the peer may be asleep: a precise one if it sleeps
    // already, else one that is soon enough.
    [[nodiscard]] uint64_t look_in_ns(uint64_t now, bool attended, bool peer_sleeps) const;
    template <class F> void each(F&& f) const {
        const uint32_t count = count_.load(std::memory_order_acquire);
        for (uint32_t index = 0; index < count; ++index) {
            f(*queues_[index]);
        }
    }
    // Keeps the queues beyond the lane. A stream of the user's may hold up a device, which has the memory until then,
    // and the notifications that it writes.
    void leave(std::unique_ptr<NotifyOutbox> outbox);
    // Lets go of the queues that were left so and have ended since. Call it now and then.
    static void sweep();

private:
    Accelerators& accelerators_;
    // Each is made once and stays. Any thread reads the first `count_`.
    SpinLock lock_;
    std::map<std::pair<int, uint64_t>, CopyQueue*> by_kind_;
    std::array<std::unique_ptr<CopyQueue>, kRings> queues_;
    std::atomic<uint32_t> count_{0};
};

} // namespace zerohop::p2p
