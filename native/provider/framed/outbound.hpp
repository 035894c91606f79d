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
#include <vector>

namespace zerohop::framed {

// A frame that fits in one piece: a request without payload, an answer, or a few bytes copied in.
struct SmallFrame {
    FrameHeader header;
    std::array<std::byte, kInlineBytes> bytes; // table and payload
    std::vector<uint64_t> table;               // instead of `bytes` if they are more
};

// A transfer that takes one frame or many.
struct Transfer {
    FrameHeader header; // kind, ticket, share, capability, and for the first frame `arg` and `notify`
    std::unique_ptr<Source> source;
    Extents remote; // offsets at the target, in step with the source; not paged where the target counts on
    OpRef op;       // initiator: stop when it has ended
    std::shared_ptr<Share> share; // target: stop when it is revoked
    std::shared_ptr<const void> pages;
};

class Outbound {
public:
    explicit Outbound(std::atomic<bool>& pending) : pending_(pending) {}

    void push(SmallFrame&& frame);
    void push(Transfer&& transfer);
    [[nodiscard]] size_t answers() const { return small_.size(); }
    [[nodiscard]] size_t transfers() const { return transfers_.size(); }

    // Sends until `budget` bytes are gone, the stream is full, or nothing is left; true if it sent something.
    bool pump(ByteStream& stream, uint64_t budget);
    // True if the last pump() stopped for want of room in the stream.
    [[nodiscard]] bool blocked() const { return blocked_; }
    // True if it stopped because no device was ready, or a device still copies for a transfer that has ended.
    [[nodiscard]] bool waits_for_device() const { return waits_for_device_ || !unsettled_.empty(); }
    [[nodiscard]] bool busy() const { return in_progress_ || !small_.empty() || !transfers_.empty(); }
    // Drops everything. Sources whose device copies still run are kept until settled().
    void clear();
    [[nodiscard]] bool settled();
    [[nodiscard]] uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

private:
    bool begin_frame();
    bool begin_transfer_frame(Transfer& transfer);
    [[nodiscard]] static size_t lay_out_parts(FrameHeader& header, const Extents& remote, uint32_t unit);
    void end(Transfer& transfer, Outcome outcome);
    void copy_payload_to_head(Source& source);
    void retire(Transfer& transfer);
    [[nodiscard]] uint64_t send_some(ByteStream& stream);

    std::atomic<bool>& pending_; // a hint for threads that do not hold the lock
    std::deque<SmallFrame> small_;
    std::list<Transfer> transfers_;
    bool blocked_ = false;
    bool waits_for_device_ = false;
    std::atomic<uint64_t> bytes_sent_{0};

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
