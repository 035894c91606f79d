// Where a peer's devices announce that their copies have arrived: rings of slots in shared memory, one ring for each
// stream of the peer. The peer's processor fills a slot in when it posts; its device, in stream order after the data,
// writes the one word that makes the slot count. So a ring is in order, and no processor is needed in between.
#pragma once

#include "accel/driver.hpp"
#include "base/descriptor.hpp"
#include "memory/accelerators.hpp"
#include "provider/notify.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace zerohop::p2p {

inline constexpr uint32_t kRings = 64;
inline constexpr uint32_t kSlots = 512;

// Shared between processes: fixed layout.
struct NotifySlot {
    std::atomic<uint32_t> ready; // the lap in which it counts; the first is 1
    uint32_t value;
    uint64_t nbytes; // and above kLengthBits which queue is told; kNothing: nothing is announced
};
struct NotifyPage {
    alignas(64) std::atomic<uint32_t> used;          // rings of which the first slot was ever taken; the peer's
    alignas(64) std::atomic<uint64_t> heads[kRings]; // slots ever taken out; the owner's
    alignas(4096) NotifySlot rings[kRings][kSlots];
};
inline constexpr uint64_t kNothing = UINT64_MAX;
inline constexpr unsigned kLengthBits = 48; // more than any memory has bytes

// Either side's mapping.
class NotifyMemory {
public:
    // Makes new ones, or maps the peer's: duplicates the descriptor; throws NativeError if it is not what it should be.
    NotifyMemory();
    explicit NotifyMemory(int fd);

    [[nodiscard]] NotifyPage& page() const { return *page_; }
    [[nodiscard]] int fd() const { return fd_.get(); }

private:
    void map();
    Descriptor fd_;
    std::shared_ptr<void> pages_;
    NotifyPage* page_ = nullptr;
};

// Our own, which the poller reads.
class NotifyInbox {
public:
    [[nodiscard]] int fd() const { return memory_.fd(); }
    [[nodiscard]] bool any() const;
    // Hands what has arrived to `deliver(notify, nbytes)`; returns how many.
    template <class F> uint32_t drain(F&& deliver) {
        uint32_t count = 0;
        const uint32_t used = rings_in_use();
        for (uint32_t ring = 0; ring < used; ++ring) {
            while (NotifySlot* slot = next(ring)) {
                const uint32_t value = slot->value;
                const uint64_t nbytes = slot->nbytes;
                memory_.page().heads[ring].store(heads_[ring].fetch_add(1, std::memory_order_relaxed) + 1,
                                                 std::memory_order_release);
                if (nbytes != kNothing) {
                    deliver(notify_of(static_cast<uint16_t>(nbytes >> kLengthBits), value),
                            nbytes & ((uint64_t{1} << kLengthBits) - 1));
                }
                if (++count == kSlots) { // others have their turn
                    return count;
                }
            }
        }
        return count;
    }

private:
    [[nodiscard]] uint32_t rings_in_use() const;
    [[nodiscard]] NotifySlot* next(uint32_t ring) const;

    NotifyMemory memory_;
    std::atomic<uint64_t> heads_[kRings]{}; // read by threads that only look; written by the poller
};

// The peer's, into which our devices write.
class NotifyOutbox {
public:
    // Throws NativeError.
    NotifyOutbox(Accelerators& accelerators, int fd);
    // Names the next slot of a ring, filled in; it counts once the word is written.
    struct Ticket {
        NotifySlot* slot = nullptr;
        uint32_t lap = 0;
        [[nodiscard]] accel::Word word() const { return {reinterpret_cast<uint64_t>(&slot->ready), lap}; }
        // Makes it count for nothing, so that what follows is seen: the device has not written it and never will.
        void skip() const;
    };
    // Takes a slot; none if the ring is full, because the peer takes nothing out.
    [[nodiscard]] Ticket take(uint32_t ring, int64_t notify, uint64_t nbytes);

private:
    const std::shared_ptr<NotifyMemory> memory_;
    std::unique_ptr<HostRegistration> registration_;
    uint64_t tails_[kRings]{}; // each written by who holds the lock of its stream
};

} // namespace zerohop::p2p
