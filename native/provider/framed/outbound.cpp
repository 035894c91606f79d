#include "provider/framed/outbound.hpp"

#include "base/guarded.hpp"

#include <algorithm>
#include <iterator>

namespace zerohop::framed {

namespace {

// Returns why a transfer fails, in the words of the initiator, for which the target reads. An initiator knows by itself
// that its own bytes have moved.
Outcome outcome_of(const Transfer& transfer) {
    const Outcome outcome = transfer.source->outcome();
    return transfer.share || outcome == kLocalMoved ? as_seen_there(outcome) : outcome;
}

} // namespace

void Outbound::push(SmallFrame&& frame) {
    small_.push_back(std::move(frame));
    pending_.store(true, std::memory_order_release);
}

void Outbound::push(std::span<SmallFrame> frames) {
    const size_t before = small_.size();
    try {
        small_.insert(small_.end(), std::make_move_iterator(frames.begin()), std::make_move_iterator(frames.end()));
    } catch (...) { // no memory: half of a request must not go out
        small_.resize(before);
        throw;
    }
    pending_.store(true, std::memory_order_release);
}

void Outbound::push(Transfer&& transfer) {
    transfers_.push_back(std::move(transfer));
    pending_.store(true, std::memory_order_release);
}

bool Outbound::pump(ByteStream& stream, uint64_t budget) {
    bool sent_something = false;
    blocked_ = waits_for_device_ = false;
    while (budget != 0) {
        if (!in_progress_ && !begin_frame()) {
            waits_for_device_ = !transfers_.empty();
            break;
        }
        const uint64_t sent = send_some(stream);
        if (sent == 0) {
            blocked_ = true;
            break;
        }
        sent_something = true;
        budget -= std::min(budget, sent);
    }
    pending_.store(busy(), std::memory_order_release);
    return sent_something;
}

// Lays out the head of the next frame; false if there is none to send now.
bool Outbound::begin_frame() {
    if (!small_.empty()) {
        const SmallFrame& frame = small_.front();
        const size_t table_bytes = size_t{frame.header.table} * 8;
        head_.resize(sizeof(FrameHeader) + table_bytes + frame.header.payload);
        std::memcpy(head_.data(), &frame.header, sizeof(FrameHeader));
        const void* body = frame.table.empty() ? static_cast<const void*>(frame.bytes.data()) : frame.table.data();
        std::memcpy(head_.data() + sizeof(FrameHeader), body, head_.size() - sizeof(FrameHeader));
        small_.pop_front();
        in_progress_ = true;
        head_sent_ = 0;
        payload_left_ = 0;
        transfer_ends_ = false;
        of_transfer_ = false;
        return true;
    }
    for (size_t tries = transfers_.size(); tries != 0; --tries) {
        if (begin_transfer_frame(transfers_.front())) {
            in_progress_ = true;
            of_transfer_ = true;
            head_sent_ = 0;
            return true;
        }
        transfers_.splice(transfers_.end(), transfers_, transfers_.begin()); // its device is not ready
    }
    return false;
}

bool Outbound::begin_transfer_frame(Transfer& transfer) {
    if (transfer.share && transfer.share->revoked.load(std::memory_order_acquire)) {
        end(transfer, {Status::access_denied, Reason::revoked});
        return true;
    }
    if (transfer.op && transfer.op->done()) {
        end(transfer, {Status::cancelled, Reason::user});
        return true;
    }
    if (transfer.source->left() == 0) { // its payload has gone without a word on how it ended
        end(transfer, outcome_of(transfer));
        return true;
    }
    const uint32_t unit = transfer.source->unit();
    if (unit == 0) {
        if (transfer.source->outcome().ok()) {
            return false;
        }
        end(transfer, outcome_of(transfer));
        return true;
    }
    FrameHeader header = transfer.header;
    header.payload = unit;
    header.offset = transfer.remote.address();
    transfer_ends_ = transfer.source->left() == unit;
    // A last frame says that all is well before its payload has gone. The memory may be revoked, move or be gone in
    // between: a short payload is read now, and after a long one comes a frame of its own.
    const bool may_change = transfer.share || transfer.source->may_change();
    const bool copied = may_change && transfer_ends_ && unit <= kCopiedLast;
    if (may_change && !copied) {
        transfer_ends_ = false;
    }
    if (transfer_ends_) {
        header.flags |= kLast;
    }
    const bool several = transfer.remote.paged() && transfer.remote.contiguous() < unit;
    if (transfer.remote.paged() && !several) {
        header.kind = FrameKind::write;
    }
    if (several) {
        header.offset = transfer.header.offset;
    }
    const size_t count = several ? lay_out_parts(header, transfer.remote, unit) : 0;
    head_.resize(sizeof header + size_t{header.table} * 8);
    std::memcpy(head_.data(), &header, sizeof header);
    if (several) {
        std::byte* const table = head_.data() + sizeof header;
        std::memcpy(table, transfer.remote.page(), count * 8);
        if (transfer.remote.ranged()) {
            std::memcpy(table + count * 8, transfer.remote.lengths(), count * 8);
        }
    }
    transfer.remote.advance(unit);
    payload_left_ = unit;
    if (copied && !copy_payload_to_head(*transfer.source)) {
        end(transfer, outcome_of(transfer));
    }
    return true;
}

// Fills in the header for whole pages or ranges, `unit` bytes in all, and returns how many of them there are.
size_t Outbound::lay_out_parts(FrameHeader& header, const Extents& remote, uint32_t unit) {
    size_t count = 0;
    if (remote.ranged()) {
        for (uint64_t nbytes = 0; nbytes < unit; ++count) {
            nbytes += remote.lengths()[count];
        }
        header.kind = FrameKind::write_ranges;
        header.table = static_cast<uint32_t>(2 * count);
    } else {
        count = unit / remote.page_bytes();
        header.kind = FrameKind::write_pages;
        header.page_bytes = static_cast<uint32_t>(remote.page_bytes());
        header.table = static_cast<uint32_t>(count);
    }
    return count;
}

// Returns false if the memory is gone or has moved.
bool Outbound::copy_payload_to_head(Source& source) {
    while (payload_left_ != 0) {
        iovec pieces[kPieces];
        const size_t count = source.gather(pieces, kPieces, payload_left_);
        uint64_t nbytes = 0;
        for (const iovec& piece : std::span(pieces, count)) {
            const size_t at = head_.size();
            head_.resize(at + piece.iov_len);
            if (copy_guarded(head_.data() + at, piece.iov_base, piece.iov_len) != Gone::nothing) {
                source.lose(kLocalMemoryGone);
                return false;
            }
            nbytes += piece.iov_len;
        }
        source.consume(nbytes);
        payload_left_ -= nbytes;
        bytes_sent_.fetch_add(nbytes, std::memory_order_relaxed);
    }
    return source.outcome().ok();
}

// Ends a transfer by a last frame: the other end must hear of the end of every one that it has heard of.
void Outbound::end(Transfer& transfer, Outcome outcome) {
    FrameHeader header = transfer.header;
    header.flags |= kLast;
    if (!outcome.ok()) {
        header.flags = kLast | kAborted; // and announces nothing
        header.status = static_cast<uint8_t>(outcome.status);
        header.reason = static_cast<uint8_t>(outcome.reason);
    }
    if (header.kind == FrameKind::write_pages) {
        header.kind = FrameKind::write;
    }
    head_.resize(sizeof header);
    std::memcpy(head_.data(), &header, sizeof header);
    payload_left_ = 0;
    transfer_ends_ = true;
}

uint64_t Outbound::send_some(ByteStream& stream) {
    if (!broken().ok()) {
        return 0;
    }
    iovec pieces[kPieces];
    size_t count = 0;
    const size_t head_left = head_.size() - head_sent_;
    if (head_left != 0) {
        pieces[count++] = {head_.data() + head_sent_, head_left};
    }
    if (payload_left_ != 0) {
        Transfer& transfer = transfers_.front();
        if (transfer.share && transfer.share->revoked.load(std::memory_order_acquire)) {
            transfer.source->blank();
        }
        count += transfer.source->gather(pieces + count, kPieces - count, payload_left_);
    }
    uint64_t sent = stream.send({pieces, count});
    if (sent == ByteStream::kGone) {                       // payload: a head of ours is always there
        transfers_.front().source->lose(kLocalMemoryGone); // its end, which has still to come, says so
        return send_some(stream);
    }
    const uint64_t total = sent;
    frame_bytes_sent_ += sent;
    const size_t of_head = std::min<uint64_t>(sent, head_left);
    head_sent_ += of_head;
    sent -= of_head;
    if (sent != 0) {
        transfers_.front().source->consume(sent);
        payload_left_ -= sent;
        bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
    }
    if (head_sent_ == head_.size() && payload_left_ == 0) {
        in_progress_ = false;
        if (transfer_ends_) {
            retire(transfers_.front());
            transfers_.pop_front();
        } else if (!of_transfer_) {
            told_at_ = frame_bytes_sent_;
        } else {
            transfers_.splice(transfers_.end(), transfers_, transfers_.begin()); // the next one's turn
        }
    }
    return total;
}

// Keeps a source that ended early while device copies still run into its buffers.
void Outbound::retire(Transfer& transfer) {
    if (!transfer.source->settled()) {
        unsettled_.push_back(std::move(transfer.source));
    }
}

bool Outbound::settled() {
    std::erase_if(unsettled_, [](const auto& source) { return source->settled(); });
    return unsettled_.empty();
}

bool Outbound::clear() {
    const bool whole = !in_progress_;
    for (Transfer& transfer : transfers_) {
        retire(transfer);
    }
    transfers_.clear();
    small_.clear();
    in_progress_ = waits_for_device_ = false;
    pending_.store(false, std::memory_order_release);
    return whole;
}

} // namespace zerohop::framed
