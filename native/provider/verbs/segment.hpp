// The messages of a lane: segments of its byte stream, and the marks behind one-sided data.
#pragma once

#include <cstdint>

namespace zerohop::verbs {

enum class SegmentKind : uint16_t {
    stream = 1, // bytes of the framed protocol follow
    taken,      // no bytes: only `taken`
    notify,     // a Mark: a part of a notified write has gone before it on this queue pair
    flush,      // a Mark: what was written before on this queue pair is to be visible
    flushed,    // a Mark: it is, on all of them
};

struct SegmentHeader {
    uint32_t taken = 0; // segments of the other side's stream that were taken so far: their room is free again
    SegmentKind kind = SegmentKind::stream;
    uint16_t reserved = 0;
};
static_assert(sizeof(SegmentHeader) == 8);

// One is sent on each queue pair that took part; it counts when `parts` of them have come. The message of a
// notification follows each of them.
struct Mark {
    uint64_t nbytes = 0;
    uint32_t ticket = 0;
    uint32_t value = 0;
    uint32_t parts = 0;
    uint16_t queue = 0; // the peer's queue that is told
    uint16_t reserved = 0;
};
static_assert(sizeof(Mark) == 24);

} // namespace zerohop::verbs
