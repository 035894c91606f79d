// Carries out what kernels of a device ask for: takes their entries out of a FIFO, checks them, and posts them to
// lanes.
//
// Entries of one peer are carried out in their order as far as they need one: puts and gets begin at once, while
// signals, atomics and fences wait until everything that was posted to the same peer before has ended, and its bytes
// are visible there. Peers wait for each other in nothing. After a failure nothing more goes to that peer, since a
// signal must not tell of bytes that never arrived.
#pragma once

#include "device/checks.hpp"
#include "device/entries.hpp"
#include "device/looking.hpp"
#include "device/visible.hpp"
#include "engine/engine.hpp"
#include "engine/work.hpp"
#include "memory/place.hpp"
#include "memory/region.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace zerohop::device {

// Where the parts of the memory lie that the host and the device write to, in one region of the host.
struct ControlLayout {
    // Byte offsets.
    static constexpr uint64_t kTaken = 0;
    static constexpr uint64_t kState = 8;
    static constexpr uint64_t kPeers = 64;
    static constexpr uint64_t kPeerBytes = 64; // ended, state; a line of its own
    explicit ControlLayout(uint64_t peers, uint64_t slots)
        : results(kPeers + peers * kPeerBytes), fifo(results + slots * sizeof(Result)),
          nbytes(fifo + slots * sizeof(Entry)) {}
    uint64_t results;
    uint64_t fifo;
    uint64_t nbytes;
};

class Proxy final : public Work {
public:
    // `control`: memory of the host as ControlLayout says, all zero. `scratch`: 8 bytes for each peer. `places`: the
    // memory that kernels reach, which stays pinned until the Proxy is gone.
    Proxy(Engine& engine, std::shared_ptr<Region> control, std::shared_ptr<Region> scratch, uint64_t slots,
          std::vector<LocalFacts> locals, std::vector<PeerFacts> peers, std::vector<Place> places, uint64_t timeout_ns);

    // Any thread. Entries are looked for while there are more begins than ends; those that are there at an end are
    // taken.
    void begin_looking() { looking_.begin(); }
    void end_looking() { looking_.end(); }
    // Any thread. Tells whether nothing is left of what was in the FIFO when end_looking() was called, or of this
    // Proxy.
    [[nodiscard]] bool settled() const {
        return closed_.load(std::memory_order_acquire) || (looking_.drained() && idle_now());
    }
    // Any thread. Tells kernels that a peer is lost, and ends what is left for it.
    void lose(size_t peer);
    // Any thread. Returns the first failure of what was posted to a peer; ok if there is none.
    [[nodiscard]] Outcome failure(size_t peer) const;

    bool poll() override;
    int fd() const override { return -1; }
    Backlog backlog() const override;
    void close(Outcome outcome) override;
    bool idle() const override;
    void abandon() override { left_.store(0, std::memory_order_release); }

private:
    struct Item {
        Decoded entry;
        uint64_t number = 0; // index in the FIFO
        uint64_t compare = 0;
        enum class State : uint8_t { waits, posted, ended } state = State::waits;
        OpRef op{};
    };
    struct Target {
        PeerFacts facts;
        // Kept, so that an entry costs no look-up. A lane refuses one whose memory was taken back.
        std::vector<std::shared_ptr<const Route>> routes;
        std::deque<Item> items; // that have not ended, or behind one that has not
        size_t begun = 0;       // how many of the items were begun, from the first
        size_t open = 0;        // begun items whose operation is under way
        uint64_t ended = 0;     // the index in the FIFO behind the last item that was retired
        Visible visible;
        uint64_t published = 0;     // the same, as kernels see it: behind the last one that is visible
        bool flush_pending = false; // some retired items are not visible yet; counted in left_
        std::atomic<bool> lost{false};
        Outcome failure;
    };

    [[nodiscard]] bool idle_now() const { return left_.load(std::memory_order_acquire) == 0; }
    [[nodiscard]] bool take();
    [[nodiscard]] bool advance(size_t number);
    [[nodiscard]] static bool may_begin(const Target& target, Op op);
    [[nodiscard]] bool retire(size_t number);
    [[nodiscard]] bool flush_lanes(size_t number);
    void note_ended(Target& target, uint64_t index);
    [[nodiscard]] bool begin(size_t number, Item& item);
    [[nodiscard]] bool collect(size_t number);
    void publish_ended(size_t number);
    void end(size_t number, Item& item, Outcome outcome, uint64_t value);
    void fail(size_t number, Outcome outcome);
    void mark_failure(size_t number);
    [[nodiscard]] bool place_is_free(uint64_t number) const;
    [[nodiscard]] uint64_t result_at(uint64_t number) const {
        return layout_.results + (number & (slots_ - 1)) * sizeof(Result);
    }
    void publish(uint64_t offset, Word value) { __atomic_store_n(word_at(offset), value, __ATOMIC_RELEASE); }
    [[nodiscard]] Word* word_at(uint64_t offset) const { return reinterpret_cast<Word*>(memory_ + offset); }
    [[nodiscard]] static constexpr uint64_t peer_at(size_t number) {
        return ControlLayout::kPeers + number * ControlLayout::kPeerBytes;
    }

    Engine& engine_;
    const std::shared_ptr<Region> control_;
    const std::shared_ptr<Region> scratch_;
    const std::vector<LocalFacts> locals_;
    const std::vector<Place> places_;
    const uint64_t slots_;
    const uint64_t timeout_ns_;
    std::byte* const memory_;
    const ControlLayout layout_;
    Fifo fifo_;
    std::vector<Target> targets_;
    std::vector<uint64_t> published_ns_; // when a result came to each place
    uint64_t compare_ = 0;               // of the entry before
    uint64_t polled_ns_ = 0;             // a recent time: the clock is not read for each small entry
    bool compares_ = false;
    size_t crowded_ = 0;          // peers with as many entries as may wait here
    uint64_t empty_looks_ = 0;    // since one that found something
    mutable std::mutex failures_; // guards Target::failure
    Looking looking_;
    std::atomic<uint64_t> left_{0}; // items, and one for each peer with flush_pending
    std::atomic<bool> closed_{false};
};

} // namespace zerohop::device
