// The framed one-sided protocol: what the shm ring and tcp carry. Both ends run the same version (the handshake
// refuses others), on little-endian machines; a frame is a header, a table of 8-byte words, and a payload.
#pragma once

#include "base/status.hpp"
#include "memory/share.hpp"
#include "provider/framed/tuning.hpp"
#include "provider/notify.hpp"

#include <bit>
#include <cstdint>
#include <string>

namespace zerohop::framed {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

enum class FrameKind : uint8_t {
    write = 1,     // a piece of a write at `offset`; the piece with `last` is answered by an ack
    write_pages,   // table: page numbers; payload: those pages
    read,          // `arg` bytes at `offset`; answered by read_data
    read_pages,    // table: page numbers of `arg` bytes each; begins() says where they begin in the operation
    fetch_add,     // table: addend
    compare_swap,  // table: compare, swap
    notify,        // table: a message of `page_bytes` bytes, if there is one
    send,          // `arg`: size of the message; payload: all of it if it is eager. `offset` not 0: so many messages in
                   // one, tagged and eager: their lengths, of 16 bits each, and then their bytes.
                   // table: a header of so many bytes as status and reason say, low byte first
    send_data,     // a piece of a message that was granted, at `offset` of it
    read_data,     // a piece of a read, at `offset` of the operation
    ack,           // the answer: status, reason, `arg`: value
    clear_to_send, // the receiver has a buffer for the message
    credit,        // `arg` notifications were taken from a queue
    ping,          // I live
    withdraw,      // the sender gave the message up: no recv may take it any more
    write_ranges,  // table: offsets, then as many lengths, none of them 0; payload: those ranges
    read_ranges,   // table: the same, `arg` bytes in all; begins() says where they begin in the operation
    leave,         // the last frame: I close this lane; `arg` not 0: and my whole Context
};

inline constexpr uint8_t kLast = 1;    // the last piece of its operation
inline constexpr uint8_t kNotify = 2;  // `notify` holds a value for the target
inline constexpr uint8_t kTagged = 8;  // a send of a group: share_index and share_generation are its scope, notify the
                                       // sender's number, page_bytes the tag
inline constexpr uint8_t kAborted = 4; // the operation ended early: nothing of it is to be announced

// Returns the words of a table that hold a message.
inline constexpr uint32_t message_words(uint32_t nbytes) {
    return (nbytes + 7) / 8;
}

// One cache line.
struct FrameHeader {
    FrameKind kind{};
    uint8_t flags = 0;
    uint8_t status = 0;  // answers, and what was aborted; with kNotify the low byte of the queue that is meant,
    uint8_t reason = 0;  // and its high one
    uint32_t ticket = 0; // names the operation at its initiator
    uint32_t share_index = 0;
    uint32_t share_generation = 0;
    Capability capability{};
    uint64_t offset = 0;
    uint64_t arg = 0;
    uint32_t payload = 0; // bytes after the table
    uint32_t table = 0;   // 8-byte words after the header
    uint32_t notify = 0;
    uint32_t page_bytes = 0;

    bool has(uint8_t flag) const { return (flags & flag) != 0; }
    void describe(const std::string& text) { // by a table that comes with it
        status = static_cast<uint8_t>(text.size());
        reason = static_cast<uint8_t>(text.size() >> 8);
        table = message_words(static_cast<uint32_t>(text.size()));
    }
    [[nodiscard]] uint32_t described() const { return status | uint32_t{reason} << 8; }
    void announce(int64_t what) {
        flags |= kNotify;
        notify = value_of(what);
        status = static_cast<uint8_t>(queue_of(what));
        reason = static_cast<uint8_t>(queue_of(what) >> 8);
    }
    int64_t announced() const { return notify_of(static_cast<uint16_t>(status | reason << 8), notify); }
    // Page lists and ranges of many pages are read by several requests, whose pieces may come in any order.
    void begin_at(uint64_t where) {
        notify = static_cast<uint32_t>(where);
        page_bytes = static_cast<uint32_t>(where >> 32);
    }
    uint64_t begins() const { return uint64_t{page_bytes} << 32 | notify; }
    ShareId share() const { return {share_index, share_generation}; }
};
static_assert(sizeof(FrameHeader) == 64);

// Reads the outcome in an answer. A peer may write anything there, also a status that would leave an operation pending
// for ever.
inline Outcome outcome_of(const FrameHeader& header) {
    const auto status = static_cast<Status>(header.status);
    const auto reason = static_cast<Reason>(header.reason);
    switch (status) {
    case Status::ok:
        return {};
    case Status::peer_lost: // of a message whose other end gave up; a peer that answers is not lost
        if (reason == Reason::given_up) {
            return {status, reason};
        }
        break;
    case Status::access_denied:
    case Status::cancelled:
    case Status::unsupported:
    case Status::protocol:
    case Status::no_memory:
    case Status::device_error:
        return {status, reason <= kLastReason ? reason : Reason::malformed};
    case Status::pending:
    case Status::closed:
    case Status::deadline:
    case Status::would_block:
    case Status::file_error: // of files at this side
        break;
    }
    return {Status::protocol, Reason::malformed};
}

// Returns an outcome in the words of the other end: what is local to one is the owner's to the other.
inline Outcome as_seen_there(Outcome outcome) {
    return outcome == kLocalMemoryGone  ? kMemoryGone
           : outcome == kMemoryGone     ? kLocalMemoryGone
           : outcome == kLocalMoved     ? kMoved
           : outcome == kLocalNoStaging ? kNoStaging
           : outcome == kNoStaging      ? kLocalNoStaging
                                        : outcome;
}

} // namespace zerohop::framed
