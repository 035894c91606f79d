// Defines how an operation ended, and why: the two numbers that native code hands to Python, which makes errors of
// them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace zerohop {

enum class Status : uint8_t {
    ok = 0,
    pending = 1,
    closed = 2,
    peer_lost = 3,
    deadline = 4,
    access_denied = 5,
    cancelled = 6,
    unsupported = 7,
    protocol = 8,
    no_memory = 9,
    device_error = 10,
    would_block = 11,
    file_error = 12, // the operation's value is the errno, or 0: the file has ended
};

enum class Reason : uint8_t {
    none = 0,
    bounds,
    rights,
    generation,
    revoked,
    capability,
    unknown_share,
    process_died,
    heartbeat,
    stream_closed,
    lane_closed,
    window_full,
    no_credit,
    truncated,
    copy_failed,
    device_lost,
    alloc_failed,
    malformed,
    out_of_descriptors,
    out_of_shared_memory,
    context_closed,
    user,
    misaligned,
    too_many_pages,
    lane_reset,
    remote_access,
    no_answer,
    not_ready,
    local_access,
    remote_error,
    port_down,
    memlock,
    nic_full,
    no_peer_link,
    capturing,
    host_registered,
    owner_closed,
    peer_closed,
    memory_gone,       // at its owner
    local_memory_gone, // at the side that asked for the operation
    out_of_memory,
    moved,            // by the library that owns it, such as torch
    not_allowed,      // by the system, such as a sandbox that refuses a call
    no_staging,       // at the owner of the memory
    local_no_staging, // at the side that asked for the operation
    given_up,         // the other side of a message has cancelled it, or its deadline has passed
    out_of_watches,   // of descriptors, by epoll
    not_direct,       // past the page cache, which was asked for
};

inline constexpr Reason kLastReason = Reason::not_direct;

// An outcome passed by value; [[nodiscard]] so that no failure is dropped without a thought.
struct [[nodiscard]] Outcome {
    Status status = Status::ok;
    Reason reason = Reason::none;

    bool ok() const { return status == Status::ok; }
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Memory whose bytes somebody took away: a shared file became shorter or had no room, or a buffer was freed.
inline constexpr Outcome kMemoryGone{Status::access_denied, Reason::memory_gone};
inline constexpr Outcome kLocalMemoryGone{Status::access_denied, Reason::local_memory_gone};
// The system has no memory for the host buffers that bytes of a device pass through.
inline constexpr Outcome kNoStaging{Status::no_memory, Reason::no_staging};
inline constexpr Outcome kLocalNoStaging{Status::no_memory, Reason::local_no_staging};
// The bytes are elsewhere by now, at their owner's or at this side (BlockWatch).
inline constexpr Outcome kMoved{Status::access_denied, Reason::moved};
inline constexpr Outcome kLocalMoved{Status::closed, Reason::moved};
// A message that its sender, or its receiver, has given up.
inline constexpr Outcome kGivenUp{Status::peer_lost, Reason::given_up};

// Ends a lane whose process has no memory left for it, or has given its peer all that one peer may have.
inline constexpr Outcome kLaneOutOfMemory{Status::peer_lost, Reason::out_of_memory};

// The exception that the boundary to Python throws for an error known at once. Inside the data plane errors are values.
class NativeError : public std::runtime_error {
public:
    NativeError(Status status, Reason reason, const std::string& text)
        : std::runtime_error(text), outcome_{status, reason} {}
    NativeError(Outcome outcome, const std::string& text) : std::runtime_error(text), outcome_(outcome) {}

    Outcome outcome() const { return outcome_; }

private:
    Outcome outcome_;
};

} // namespace zerohop
