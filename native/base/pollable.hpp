// Defines what the poller needs of the object that it drives.
#pragma once

#include <cstdint>

namespace zerohop {

// The state in which a thread that stops polling leaves the work.
struct Left {
    bool ready = false;   // poll() would find work
    bool unarmed = false; // a device may do something that somebody must act upon, and would wake nobody
    uint64_t sleep_limit_ns = UINT64_MAX;        // tick() or poll() must run within this time
    uint64_t caller_sleep_limit_ns = UINT64_MAX; // an additional limit for a caller that sleeps
};

// Tells what a poll() did: nothing, the ends of operations that nobody waits for, or other work, after which more is
// likely to come.
enum class Found : uint8_t { nothing, ends, work };

// The interface that the poller drives; the engine implements it.
class Pollable {
public:
    virtual ~Pollable() = default;
    // Moves whatever can be moved. One thread at a time calls this.
    virtual Found poll() = 0;
    // Sees to deadlines, dead peers and heartbeats. The polling thread calls this about once a millisecond.
    virtual void tick(uint64_t now) = 0;
    // Returns the state of the work. A thread that is about to sleep, or stops polling, calls this.
    virtual Left left(uint64_t now) = 0;
    // Returns Left::unarmed alone.
    virtual bool unarmed() { return false; }
    // Returns for how long nobody needs to ask left(): the last poll() left no work, and new work either wakes somebody
    // or may wait that long. A thread that knows that somebody polls within this time need not ask. 0: ask left().
    virtual uint64_t may_wait_ns() { return 0; }
    // Makes device events readable on a watched descriptor from now on, because nobody will poll for a while. True if
    // something may have happened before that. With `for_caller` a caller sleeps, who may wait for any event; otherwise
    // only events that somebody must act upon count.
    virtual bool arm(bool /*for_caller*/) { return false; }
    // Takes the pending events from the descriptors of the devices, which would stay readable otherwise. Called when a
    // watched descriptor has become readable.
    virtual void woken() {}
};

} // namespace zerohop
