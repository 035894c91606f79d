// Declares the waits of the functions for kernels, each of which ends with the Queue's time, or with a state.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"

namespace zerohop::device {

struct Found {
    Word status;
    Word value; // from before
};

namespace detail {

// Polls between two looks at the clock and at states, which are in memory of the host and take longer.
constexpr unsigned kSpins = 64;

ZEROHOP_DEVICE_FN bool exists(const Peer& peer) {
    return peer.posted != 0;
}

ZEROHOP_DEVICE_FN Word state_of(const Queue* queue, const Peer& peer) {
    const Word state = platform::load_acquire(queue->state);
    return state == kOk && exists(peer) ? platform::load_acquire(peer.state) : state;
}

ZEROHOP_DEVICE_FN bool reached(Word address, Word number, bool on_device) { // as signed numbers
    const Word found = on_device ? platform::load_near(address) : platform::load_acquire(address);
    return static_cast<long long>(found) >= static_cast<long long>(number);
}

// Waits until a word that others change is a number or more. `on_device`: it is in memory of this device.
ZEROHOP_DEVICE_FN Word wait_for(const Queue* queue, const Peer& peer, Word address, Word number, bool on_device) {
    const Word until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
    for (;;) {
        ZEROHOP_NO_UNROLL
        for (unsigned spins = 0; spins < kSpins; ++spins) {
            if (reached(address, number, on_device)) {
                return kOk;
            }
            platform::relax();
        }
        Word status = state_of(queue, peer);
        if (status == kOk && platform::now_ns() > until) {
            status = kTimedOut;
        }
        if (status != kOk) {
            return reached(address, number, on_device) ? kOk : status;
        }
    }
}

// Tells whether a counter of the host has reached a number, or carries the failure bit.
ZEROHOP_DEVICE_FN bool reached_or_failed(Word value, Word number) {
    return (value & kFailure) != 0 || value >= number;
}

// Waits until a counter of the host is `number` or more, or carries kFailure; returns the status and the counter.
//
// One of the kernels that wait for the same counter polls the memory of the host. It copies the counter into memory of
// the device, where the others poll it: if all of them polled over PCIe, their reads would fill the link, and entries
// would not pass. `progress_restarts`: the time begins again whenever the counter has grown.
ZEROHOP_DEVICE_FN Found wait_for_count(const Queue* queue, const Peer& peer, Word host, Word copy, Word number,
                                       bool progress_restarts) {
    Word value = platform::fetch_or_near(copy, kPolled);
    bool polls = (value & kPolled) == 0;
    value &= ~kPolled;
    if (reached_or_failed(value, number)) {
        if (polls) {
            platform::store_near(copy, value);
        }
        return {kOk, value};
    }
    Word last = value;
    Word until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
    ZEROHOP_NO_UNROLL
    for (unsigned spins = 1;; ++spins) {
        bool checks = spins % kSpins == 0;
        // One loop for both, which publishes before it ends: threads of a warp may have to take their turns together.
        if (polls) {
            const Word found = platform::load_acquire(host);
            const bool enough = reached_or_failed(found, number);
            if (enough || found != value) {
                platform::store_near(copy, enough ? found : found | kPolled);
            }
            value = found;
        } else {
            const Word found = platform::load_near(copy);
            value = found & ~kPolled;
            if (found == value && !reached_or_failed(value, number)) {
                polls = platform::compare_swap(copy, value, value | kPolled) == value;
                checks |= polls; // the one before may have stopped for a reason that ends this wait as well
            }
        }
        if (reached_or_failed(value, number)) {
            return {kOk, value};
        }
        platform::relax();
        if (!checks) {
            continue;
        }
        if (progress_restarts && value != last) {
            last = value;
            until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
        }
        // Only the one that polls reads the states: they are in memory of the host as well.
        Word status = polls ? state_of(queue, peer) : kOk;
        if (status == kOk && platform::now_ns() > until) {
            status = kTimedOut;
        }
        if (status != kOk) {
            value = platform::load_acquire(host); // it may have come with the reason to stop
            if (polls) {
                platform::store_near(copy, value);
            }
            return {reached_or_failed(value, number) ? kOk : status, value};
        }
    }
}

} // namespace detail

} // namespace zerohop::device
