// The byte stream of a verbs lane: sends on its first queue pair, into the shared receive queue of the other side. What
// no NIC can reach goes through it with the framed protocol, and all messages do.
#pragma once

#include "provider/framed/byte_stream.hpp"
#include "provider/verbs/domain.hpp"
#include "provider/verbs/segment.hpp"
#include "provider/verbs/tuning.hpp"

#include <atomic>
#include <cstdint>
#include <deque>

namespace zerohop::verbs {

class VerbsEndpoint;

class SegmentStream final : public framed::ByteStream {
public:
    explicit SegmentStream(VerbsEndpoint& lane) : lane_(lane) {}
    ~SegmentStream() override { close(true); }

    // The caller holds the lane's lock.
    size_t send(std::span<const iovec> pieces) override;
    size_t receive(std::span<const iovec> pieces, bool streaming) override;
    bool knows_empty() const override { return waiting_.load(std::memory_order_relaxed) == 0; }
    bool ready(bool wants_room) const override;
    void want_room(bool /*wanted*/) override {}
    Outcome state() const override { return {}; } // a queue pair that fails ends the lane itself
    void close(bool at_once) override;

    // Poller. Takes a segment; false if it is empty or beyond the window: no peer of ours sends such.
    [[nodiscard]] bool arrived(const Segment& segment);
    // Notes how many the peer has taken; false if more than were sent.
    [[nodiscard]] bool note_taken(uint32_t taken) {
        if (sent_.load(std::memory_order_acquire) - taken > kStreamWindow) {
            return false;
        }
        acknowledged_.store(taken, std::memory_order_release);
        return true;
    }
    // Returns the count that goes with whatever is sent next.
    uint32_t taken() const { return taken_.load(std::memory_order_acquire); }
    // True if the other side must be told, although nothing is being sent.
    bool owes_word() const { return taken() - told_.load(std::memory_order_relaxed) >= kStreamWindow / 2; }
    void told(uint32_t taken) { told_.store(taken, std::memory_order_relaxed); }

private:
    void take_front();
    uint32_t window_left() const {
        return kStreamWindow - (sent_.load(std::memory_order_relaxed) - acknowledged_.load(std::memory_order_acquire));
    }

    VerbsEndpoint& lane_;
    std::atomic<uint32_t> sent_{0}; // written under the lane's lock
    std::atomic<uint32_t> acknowledged_{0};
    std::atomic<bool> starved_{false}; // the last send() stopped because the window was full
    std::deque<Segment> inbound_;      // the poller's
    std::atomic<size_t> waiting_{0};
    uint32_t at_ = sizeof(SegmentHeader); // in the first of them
    std::atomic<uint32_t> taken_{0};
    std::atomic<uint32_t> told_{0};
};

} // namespace zerohop::verbs
