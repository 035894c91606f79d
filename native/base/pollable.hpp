// What the poller drives, as the poller sees it.
#pragma once

#include <cstdint>

namespace zerohop {

// What whoever stops polling leaves to others.
struct Left {
    bool ready = false;   // poll() would find something
    bool unarmed = false; // something may happen in a device that somebody must act upon, and nobody would notice
    uint64_t sleep_limit_ns = UINT64_MAX;        // tick() or poll() must run by then
    uint64_t caller_sleep_limit_ns = UINT64_MAX; // and then, too, where it is a caller that sleeps
};

// What a poll() did: nothing, see to the ends of operations that nobody waits for, or anything else, which is likely to
// be followed by more.
enum class Found : uint8_t { nothing, ends, work };

// What the poller drives; the engine implements it.
class Pollable {
public:
    virtual ~Pollable() = default;
    // Moves what can be moved. Called by one thread at a time.
    virtual Found poll() = 0;
    // Deadlines, peers' lives, heartbeats. Called by the polling thread about once a millisecond.
    virtual void tick(uint64_t now) = 0;
    // Called by a thread about to sleep, or that stops polling.
    virtual Left left(uint64_t now) = 0;
    // That of left() alone.
    virtual bool unarmed() { return false; }
    // Where the last poll() left nothing, and whatever comes up now is either told by whoever brings it or may wait:
    // for how long. left() need not be asked by who knows that somebody looks by then. 0: ask.
    virtual uint64_t may_wait_ns() { return 0; }
    // Nobody will poll for a while: from now on, what happens in a device makes a watched descriptor readable. True
    // when something may have happened before that. `for_caller`: one that waits for anything at all, and else for
    // what somebody must act upon.
    virtual bool arm(bool /*for_caller*/) { return false; }
    // A descriptor became readable: takes what a device says by its own, which would stay readable otherwise.
    virtual void woken() {}
};

} // namespace zerohop
