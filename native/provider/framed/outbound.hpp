// The sending half of a framed lane: answers first, then a frame of each transfer in turn, so that a small operation
// never waits for the whole of a large one. Guarded by the lane's lock.
#pragma once

#include "operation/operation.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/source.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zerohop::framed {

// A frame that fits in one piece: a request without payload, an answer, or a few bytes copied in.
struct SmallFrame {
    FrameHeader header;
    std::array<std::byte, kInlineBytes> bytes; // table and payload
    std::vector<uint64_t> table;               // instead of `bytes` if they are more
};

// Counts bytes that a peer has this process keep, until they are dropped.
class Kept {
public:
    Kept() = default;
    Kept(std::atomic<uint64_t>& of_lane, std::atomic<uint64_t>& of_context, uint64_t nbytes)
        : of_lane_(&of_lane), of_context_(&of_context), nbytes_(nbytes) {
        of_lane.fetch_add(nbytes, std::memory_order_relaxed);
        of_context.fetch_add(nbytes, std::memory_order_relaxed);
    }
    Kept(Kept&& other) noexcept
        : of_lane_(other.of_lane_), of_context_(other.of_context_), nbytes_(std::exchange(other.nbytes_, 0)) {}
    Kept& operator=(Kept&& other) noexcept {
        std::swap(of_lane_, other.of_lane_);
        std::swap(of_context_, other.of_context_);
        std::swap(nbytes_, other.nbytes_);
        return *this;
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
        if (nbytes_ != 0) {
            of_lane_->fetch_sub(nbytes_, std::memory_order_relaxed);
            of_context_->fetch_sub(nbytes_, std::memory_order_relaxed);
        }
    }

private:
    std::atomic<uint64_t>* of_lane_ = nullptr;
    std::atomic<uint64_t>* of_context_ = nullptr;
    uint64_t nbytes_ = 0;
};

// A transfer that takes one frame or many.
struct Transfer {
    FrameHeader header; // kind, ticket, share, capability, and for the first frame `arg` and `notify`
    std::unique_ptr<Source> source;
    Extents remote; // offsets at the target, in step with the source; not paged where the target counts on
    OpRef op;       // initiator: stop when it has ended
    std::shared_ptr<Share> share; // target: stop when it is revoked
    std::shared_ptr<const void> pages;
    Kept kept; // target: the peer's page list
};

class Outbound {
public:
    explicit Outbound(std::atomic<bool>& pending) : pending_(pending) { head_.reserve(kMostHeadBytes); }

    void push(SmallFrame&& frame);
    void push(std::span<SmallFrame> frames); // all, or throws and queues none
    void push(Transfer&& transfer);
    [[nodiscard]] size_t answers() const { return small_.size(); }
    [[nodiscard]] size_t transfers() const { return transfers_.size(); }
    // True while a frame of few bytes has not arrived: a notification, or an answer.
    [[nodiscard]] bool telling(const ByteStream& stream) const {
        return !small_.empty() || (in_progress_ && !of_transfer_) || told_at_ + stream.under_way() > frame_bytes_sent_;
    }

    // Sends until `budget` bytes are gone, the stream is full, or nothing is left; true if it sent something.
    bool pump(ByteStream& stream, uint64_t budget);
    // True if the last pump() stopped for want of room in the stream.
    [[nodiscard]] bool blocked() const { return blocked_; }
    // True if it stopped because no device was ready, or a device still copies for a transfer that has ended.
    [[nodiscard]] bool waits_for_device() const { return waits_for_device_ || !unsettled_.empty(); }
    [[nodiscard]] bool busy() const { return in_progress_ || !small_.empty() || !transfers_.empty(); }
    // Sends nothing more; the lane has to end. Any thread.
    void break_off(Outcome why) { broken_.store(why, std::memory_order_release); }
    // Not ok once broken off.
    [[nodiscard]] Outcome broken() const { return broken_.load(std::memory_order_acquire); }
    // Gets the memory for clear().
    void prepare_clear() { unsettled_.reserve(unsettled_.size() + transfers_.size()); }
    // Drops everything. Sources whose device copies still run are kept until settled(). True if no frame was cut short.
    bool clear();
    [[nodiscard]] bool settled();
    [[nodiscard]] uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

private:
    // A transfer's head needs no more memory: without it a frame would be lost, and its bytes come to lie elsewhere.
    static constexpr size_t kMostHeadBytes = sizeof(FrameHeader) + 2 * kMaxPagesPerWrite * 8 + kCopiedLast;

    bool begin_frame();
    bool begin_transfer_frame(Transfer& transfer);
    [[nodiscard]] static size_t lay_out_parts(FrameHeader& header, const Extents& remote, uint32_t unit);
    void end(Transfer& transfer, Outcome outcome);
    [[nodiscard]] bool copy_payload_to_head(Source& source);
    void retire(Transfer& transfer);
    [[nodiscard]] uint64_t send_some(ByteStream& stream);

    std::atomic<bool>& pending_; // a hint for threads that do not hold the lock
    std::deque<SmallFrame> small_;
    std::list<Transfer> transfers_;
    bool blocked_ = false;
    bool waits_for_device_ = false;
    std::atomic<uint64_t> bytes_sent_{0};
    uint64_t frame_bytes_sent_ = 0; // heads, too
    uint64_t told_at_ = 0;          // of them, up to the end of the last small frame
    std::atomic<Outcome> broken_{}; // read without the lock

    std::vector<std::unique_ptr<Source>> unsettled_;

    // The frame that is being sent: its head (header and table), then payload of the first transfer.
    bool in_progress_ = false;
    std::vector<std::byte> head_;
    size_t head_sent_ = 0;
    uint64_t payload_left_ = 0;
    bool of_transfer_ = false;
    bool transfer_ends_ = false; // with this frame
};

} // namespace zerohop::framed
