// Plain values: the requests that are posted to a lane, and the answers of post().
#pragma once

#include "base/clock.hpp"
#include "base/page_list.hpp"
#include "memory/place.hpp"
#include "memory/region.hpp"
#include "memory/share.hpp"
#include "operation/operation.hpp"
#include "provider/notify.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace zerohop {

class Endpoint;

// How a lane reaches the remote memory of a route by itself, instead of asking the peer for each transfer. Each
// provider that can do so derives its own class, and refuses in prepare() what is not its own: so post() may cast.
struct RemoteAccess {
    RemoteAccess(uint64_t reachable, uint8_t allowed, bool posts_briefly)
        : nbytes(reachable), rights(allowed), brief(posts_briefly) {}
    virtual ~RemoteAccess() = default;
    RemoteAccess(const RemoteAccess&) = delete;
    RemoteAccess& operator=(const RemoteAccess&) = delete;
    // Pins the memory for work that is no lane's. Not ok if only a lane reaches it, or its owner has taken it back.
    [[nodiscard]] virtual Outcome pin(Place& /*place*/) const { return {Status::unsupported, Reason::none}; }
    // Returns the object that pin() pins; null if it pins none.
    [[nodiscard]] virtual std::shared_ptr<const void> pinned() const { return nullptr; }

    const uint64_t nbytes; // reachable, from the share's start
    const uint8_t rights;  // kRightRead, kRightWrite
    const bool brief;      // post() of a small range makes no system call: a caller need not give up Python's GIL
};

// A pair (memory, remote memory) on one lane: everything that stays the same from one operation to the next.
struct Route {
    std::shared_ptr<Endpoint> endpoint;
    std::shared_ptr<Region> local;
    ShareId share;
    Capability capability{};
    uint64_t remote_nbytes = 0;
    uint8_t rights = 0;
    std::shared_ptr<const RemoteAccess> access; // null: the framed protocol carries every transfer
};

enum class Kind : uint8_t { write, read, fetch_add, compare_swap, notify, send, recv, flush };

// Says to which group a tagged message belongs, and what is known of it before its bytes.
struct Envelope {
    uint64_t scope = 0;
    uint32_t source = 0; // the sender's number in the group
    uint32_t tag = 0;
};

// Returns the value of a receive that takes the message.
constexpr uint64_t value_of(const Envelope& envelope) {
    return uint64_t{envelope.source} << 32 | envelope.tag;
}
inline constexpr uint32_t kMostSource = UINT32_MAX >> 1;
// In the value of a receive with a finder's number: the message had a header, which Mailbox::take_header() gives.
inline constexpr uint64_t kDescribed = uint64_t{1} << 63;

// Says which messages of a group a receive takes; a negative number: any.
struct Wanted {
    int64_t source = -1;
    int64_t tag = -1;

    [[nodiscard]] bool admits(const Envelope& envelope) const {
        return (source < 0 || source == envelope.source) && (tag < 0 || tag == envelope.tag);
    }
};

struct Request {
    explicit Request(uint64_t started_ns = now_ns()) : started_ns(started_ns) {}
    Kind kind = Kind::write;
    const Route* route = nullptr;       // of one-sided kinds; lives as long as the call
    std::shared_ptr<Region> local;      // of send and recv
    const Envelope* envelope = nullptr; // of a tagged send; lives as long as the call
    const void* bytes = nullptr;        // of a short send in place of `local`; they are copied within the call
    uint32_t packed = 0;                // `bytes` are so many messages, as in a frame of the framed protocol
    uint64_t local_offset = 0;
    uint64_t remote_offset = 0;
    uint64_t nbytes = 0;                   // with pages, the sum of all
    std::shared_ptr<const PageList> pages; // null: one range
    int64_t notify = -1;                   // negative: none; see notify.hpp
    const Message* message = nullptr; // goes with the notification, or before a tagged send; lives as long as the call
    const OperationGroup* group = nullptr; // the group to join; it lives as long as the call
    uint64_t operand = 0;                  // fetch_add: the addend; compare_swap: the new value
    uint64_t compare = 0;
    uint64_t deadline_ns = 0; // 0: none
    uint64_t started_ns;
    // A stream of the user's, by the driver's own number: the transfer begins after everything that is queued on it
    // now. Only lanes whose devices copy can do that.
    std::optional<uint64_t> after_stream;
};

// A receive that waits for its message.
struct PostedRecv {
    OpRef op;
    Pin<Region> local;
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    // A number, not 0, of a receive that ends well, and without the bytes, if the message is longer than the memory or
    // there is no memory: Mailbox::claim() names memory for it, by that number. Only for tagged messages.
    uint64_t finder = 0;
    // Only finds a message that has a header, and whose bytes have not come: the header may say how else they come.
    bool finds_described = false;
    // A claim of a message whose bytes have come otherwise: its sender is told that it has been received.
    bool carried = false;
};

inline Message message_of(const Request& request) {
    return request.message == nullptr ? nullptr : *request.message;
}

struct Posted {
    enum class What : uint8_t {
        done,   // The operation ended well before post() returned, and has used no slot.
        posted, // The operation is under way; `op` tells its end.
        retry,  // Nothing happened: the lane is full, and `outcome.reason` says of what.
        failed, // Nothing happened, and trying again will not help.
    };
    What what = What::done;
    Outcome outcome{};
    OpRef op{};
    uint64_t value = 0;       // what an atomic has found
    bool look = false;        // `posted`, a receive whose message is here: call Engine::look_or_kick(), or wait for it
    bool carried_out = false; // `posted`, and the device does all the rest: the lane needs no poll() to get it done
};

} // namespace zerohop
