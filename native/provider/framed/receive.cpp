// The receiving half: taking frames apart, and putting payload where it belongs.
#include "provider/framed/endpoint.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace zerohop::framed {

// Returns false for a frame that no peer of ours sends, which ends the lane.
bool FramedEndpoint::well_formed(const FrameHeader& header) const {
    if (header.payload > kMaxPayload || header.table > kMaxTable || !takes(header)) {
        return false;
    }
    switch (header.kind) {
    case FrameKind::write:
    case FrameKind::read_data:
    case FrameKind::send_data:
        return header.table == 0;
    case FrameKind::write_pages:
        return header.page_bytes != 0 && header.table != 0 &&
               uint64_t{header.table} * header.page_bytes == header.payload;
    case FrameKind::write_ranges:
        return header.table != 0 && header.table % 2 == 0;
    case FrameKind::read_pages:
        return header.payload == 0 && header.arg <= UINT64_MAX / kMaxTable;
    case FrameKind::read_ranges:
        return header.payload == 0 && header.table != 0 && header.table % 2 == 0;
    case FrameKind::fetch_add:
        return header.payload == 0 && header.table == 1;
    case FrameKind::compare_swap:
        return header.payload == 0 && header.table == 2;
    case FrameKind::send:
        if (header.offset != 0 && (!header.has(kTagged) || header.payload != header.arg ||
                                   header.offset > kMostPacked || header.payload / sizeof(uint16_t) < header.offset)) {
            return false;
        }
        return header.table == message_words(header.described()) && header.described() <= kMaxMessage &&
               (header.table == 0 || (header.has(kTagged) && header.offset == 0)) &&
               (header.payload == 0 || (header.payload == header.arg && header.arg <= kEagerBytes));
    case FrameKind::notify:
        return header.payload == 0 && header.page_bytes <= kMaxMessage &&
               header.table == message_words(header.page_bytes);
    case FrameKind::read:
    case FrameKind::ack:
    case FrameKind::clear_to_send:
    case FrameKind::credit:
    case FrameKind::ping:
    case FrameKind::withdraw:
    case FrameKind::leave:
        return header.payload == 0 && header.table == 0;
    }
    return false;
}

bool FramedEndpoint::receive(uint64_t budget) {
    bool did = false;
    while (budget != 0 && failure_.ok()) {
        if (!in_.head_complete) {
            if (!receive_head(did)) {
                break;
            }
            if (!well_formed(in_.header)) {
                fail({Status::protocol, Reason::malformed});
                break;
            }
        }
        if (!in_.in_payload) {
            if (!begin_payload()) {
                break; // no staging buffer is free
            }
            in_.in_payload = true;
            in_.payload_left = in_.header.payload;
        }
        if (!receive_payload(budget, did)) {
            break;
        }
        end_frame();
        in_.reset();
        budget -= std::min<uint64_t>(budget, sizeof(FrameHeader));
    }
    return did;
}

// Returns true once header and table are here.
bool FramedEndpoint::receive_head(bool& did) {
    // The bytes from `start` on of the head, up to `end`, go to `to`.
    const auto fill = [&](void* to, size_t start, size_t end) {
        if (in_.head_got < end) {
            const iovec piece{static_cast<std::byte*>(to) + (in_.head_got - start), end - in_.head_got};
            const size_t got = stream_->receive({&piece, 1}, false);
            in_.head_got += got;
            did |= got != 0;
        }
        return in_.head_got >= end;
    };
    if (in_.head_got < sizeof(FrameHeader)) {
        if (!fill(&in_.header, 0, sizeof(FrameHeader))) {
            return false;
        }
        if (in_.header.table > kMaxTable) {
            return true; // refused by the caller
        }
        in_.table.resize(in_.header.table);
    }
    in_.head_complete = fill(in_.table.data(), sizeof(FrameHeader), sizeof(FrameHeader) + in_.table.size() * 8);
    return in_.head_complete;
}

// Finds the place of the payload; false: come back when a staging buffer is free.
bool FramedEndpoint::begin_payload() {
    switch (in_.header.kind) {
    case FrameKind::write:
    case FrameKind::write_pages:
    case FrameKind::write_ranges:
        return begin_write(in_.header);
    case FrameKind::read_data:
        return begin_read_data(in_.header);
    case FrameKind::send_data:
        return begin_send_data(in_.header);
    case FrameKind::send:
        in_.eager.resize(in_.header.payload);
        return true;
    default: // no other kind has a payload, as well_formed() has seen to
        return true;
    }
}

// Returns true once the whole payload is here.
bool FramedEndpoint::receive_payload(uint64_t& budget, bool& did) {
    std::array<iovec, kPieces> pieces;
    while (in_.payload_left != 0) {
        if ((in_.share && in_.share->revoked.load(std::memory_order_acquire)) || (in_.op && in_.op->done())) {
            drop_payload(in_.share ? Outcome{Status::access_denied, Reason::revoked} : Outcome{});
        }
        if (in_.sink != nullptr && !in_.sink->outcome().ok()) {
            drop_payload(in_.share ? as_seen_there(in_.sink->outcome()) : in_.sink->outcome());
        }
        size_t count = 1;
        if (in_.sink != nullptr) {
            count = in_.sink->scatter(pieces.data(), kPieces, in_.payload_left);
        } else if (!in_.eager.empty()) {
            pieces[0] = {in_.eager.data() + (in_.header.payload - in_.payload_left), in_.payload_left};
        } else {
            in_.scrap.resize(kScrap);
            pieces[0] = {in_.scrap.data(), std::min<uint64_t>(in_.payload_left, kScrap)};
        }
        const size_t got = stream_->receive({pieces.data(), count}, in_.streaming);
        if (got == 0) {
            return false;
        }
        if (got == ByteStream::kGone) {
            drop_payload(in_.share ? kMemoryGone : kLocalMemoryGone);
            continue;
        }
        did = true;
        if (in_.sink != nullptr) {
            in_.sink->consume(got);
        }
        in_.payload_left -= got;
        bytes_received_.fetch_add(got, std::memory_order_relaxed);
        budget -= std::min<uint64_t>(budget, got);
    }
    return true;
}

// Throws the rest of the frame away: its memory may not be touched any more, or is gone.
void FramedEndpoint::drop_payload(Outcome why) {
    if (in_.sink != nullptr) {
        in_.sink->end_frame(false);
        in_.sink = nullptr;
    }
    if (in_.verdict.ok()) {
        in_.verdict = why;
    }
}

void FramedEndpoint::end_frame() {
    const FrameHeader& header = in_.header;
    if (in_.sink != nullptr) {
        in_.sink->end_frame(true);
    }
    switch (header.kind) {
    case FrameKind::write:
    case FrameKind::write_pages:
    case FrameKind::write_ranges:
        return end_write(header);
    case FrameKind::read:
    case FrameKind::read_pages:
    case FrameKind::read_ranges:
        return on_read(header);
    case FrameKind::fetch_add:
    case FrameKind::compare_swap:
        return on_atomic(header);
    case FrameKind::notify:
        return on_notify(header);
    case FrameKind::send:
        return on_send(header);
    case FrameKind::send_data:
        return end_send_data(header);
    case FrameKind::read_data:
        return end_read_data(header);
    case FrameKind::ack:
        return on_ack(header);
    case FrameKind::clear_to_send:
        return on_clear_to_send(header);
    case FrameKind::credit:
        announced_.add(queue_of(header.announced()), -static_cast<int>(std::min<uint64_t>(header.arg, kCredits)));
        host_.wake_waiters();
        return;
    case FrameKind::ping:
        return;
    case FrameKind::withdraw:
        return on_withdraw(header);
    case FrameKind::leave:
        return fail({Status::peer_lost, header.arg != 0 ? Reason::context_closed : Reason::peer_closed});
    }
}

} // namespace zerohop::framed
