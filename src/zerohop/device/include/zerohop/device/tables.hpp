// Reads the entries of a Queue's tables.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"

namespace zerohop::device {

namespace detail {

// Returns the entry of a peer. It has no rights and no counter if there is no such peer, or the kernel has another
// layout.
ZEROHOP_DEVICE_FN Peer peer_of(const Queue* queue, Word number) {
    const Word layout = platform::read_once(&queue->layout);
    Peer found = platform::read_all(queue->peers + (number & (kMaxPeers - 1)));
    if (number >= kMaxPeers || layout != kLayout) {
        found.rights = 0;
        found.posted = 0;
    }
    return found;
}

// Returns the entry of a local, which has no rights likewise.
ZEROHOP_DEVICE_FN Local local_of(const Queue* queue, Word number) {
    const Word layout = platform::read_once(&queue->layout);
    Local found = platform::read_all(queue->locals + (number & (kMaxLocals - 1)));
    if (number >= kMaxLocals || layout != kLayout) {
        found.rights = 0;
    }
    return found;
}

} // namespace detail

} // namespace zerohop::device
