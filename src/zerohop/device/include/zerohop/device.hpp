// The functions that kernels in CUDA and HIP C++ call on a Queue; zerohop.device.include_dir() is the folder.
//
// A kernel takes `queue.pointer` as a `const zerohop::device::Queue*`. `peer` and `local` are places in the lists that
// the Queue was made of; offsets and lengths are bytes. With Scope::block (the default) all threads of a block make a
// call, with the same arguments; with Scope::warp all threads of a full warp do; with Scope::thread one does. It is
// made once for all of them. Every function returns kOk, kTimedOut, kPeerLost, kFailed or kClosed, to all threads that
// have called it. `status` is one from before: if it is not kOk, the function does nothing and returns it. Calls that
// are chained so need no condition, which would keep the compiler from reading the descriptor once for all turns of a
// loop. HIP: compiled, not verified on hardware.
#pragma once

#include "zerohop/device/detail.hpp"
#include "zerohop/device/fifo.hpp"
#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/threads.hpp"

namespace zerohop::device {

// A status from before. It is a type of its own, so that the compiler finds one in the place of another argument.
struct After {
    ZEROHOP_DEVICE_FN constexpr explicit After(Word before = kOk) : status(before) {}
    Word status;
};

// Writes `nbytes` of a local to a peer's memory. The local may be changed after flush().
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word put(const Queue* queue, Word peer_number, Word dst_offset, Word local_number, Word src_offset,
                           Word nbytes, After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    const Local local = detail::local_of(queue, local_number);
    const bool is_right =
        platform::work_out_once(detail::is_transfer(Op::put, peer, dst_offset, local, src_offset, nbytes));
    if (after.status != kOk) {
        return after.status;
    }
    if (!is_right) {
        return detail::refuse(queue, peer_number);
    }
    return detail::transfer<kScope>(queue, Op::put, peer_number, peer, dst_offset, local_number, local, src_offset,
                                    nbytes);
}

// Reads `nbytes` of a peer's memory into a local. They are there after flush().
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word get(const Queue* queue, Word peer_number, Word src_offset, Word local_number, Word dst_offset,
                           Word nbytes, After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    const Local local = detail::local_of(queue, local_number);
    const bool is_right =
        platform::work_out_once(detail::is_transfer(Op::get, peer, src_offset, local, dst_offset, nbytes));
    if (after.status != kOk) {
        return after.status;
    }
    if (!is_right) {
        return detail::refuse(queue, peer_number);
    }
    return detail::transfer<kScope>(queue, Op::get, peer_number, peer, src_offset, local_number, local, dst_offset,
                                    nbytes);
}

// Sets a peer's 8-byte word, or adds to it, after all that these threads have put there before is there.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word signal(const Queue* queue, Word peer_number, Word offset, Word value, bool add = false,
                              After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    const bool is_right = platform::work_out_once(detail::is_word(peer, offset, add ? kRead | kWrite : kWrite));
    if (after.status != kOk) {
        return after.status;
    }
    if (!is_right) {
        return detail::refuse(queue, peer_number);
    }
    return detail::send_signal<kScope>(queue, peer_number, peer, offset, value, add);
}

// Puts, and then signals at `signal_offset` of the same peer's memory. Both are refused, or none.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word put_signal(const Queue* queue, Word peer_number, Word dst_offset, Word local_number,
                                  Word src_offset, Word nbytes, Word signal_offset, Word value, bool add = false,
                                  After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    const Local local = detail::local_of(queue, local_number);
    const bool is_right =
        platform::work_out_once(detail::is_transfer(Op::put, peer, dst_offset, local, src_offset, nbytes) &
                                detail::is_word(peer, signal_offset, add ? kRead | kWrite : kWrite));
    if (after.status != kOk) {
        return after.status;
    }
    if (!is_right) {
        return detail::refuse(queue, peer_number);
    }
    const Word status = detail::transfer<kScope>(queue, Op::put, peer_number, peer, dst_offset, local_number, local,
                                                 src_offset, nbytes);
    return status == kOk ? detail::send_signal<kScope>(queue, peer_number, peer, signal_offset, value, add) : status;
}

// Waits until the 8-byte word at an offset of a local is `value` or more; what was put before it is there then. The
// wait ends with the Queue's timeout, and with the loss of `peer`; kNoPeer: of none.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word wait_signal(const Queue* queue, Word local_number, Word offset, Word value,
                                   Word peer_number = kNoPeer, After after = After()) {
    const Local local = detail::local_of(queue, local_number);
    const Peer peer = detail::peer_of(queue, peer_number);
    const bool is_right = platform::work_out_once((local.rights != 0) & ((local.base + offset) % 8 == 0) &
                                                  detail::fits(offset, 8, local.nbytes) &
                                                  (detail::exists(peer) | (peer_number == kNoPeer)));
    if (after.status != kOk) {
        return after.status;
    }
    if (!is_right) {
        return detail::refuse(queue, kNoPeer);
    }
    Word status = kOk;
    if (platform::is_first<kScope>()) {
        status = detail::wait_for(queue, peer, local.base + offset, value, local.on_host == 0);
    }
    return platform::agree<kScope>(status);
}

// Waits until everything that was posted to a peer by now is there, and gets have arrived.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word flush(const Queue* queue, Word peer_number,
                                                                    After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    if (after.status != kOk) {
        return after.status;
    }
    if (!detail::exists(peer)) {
        return detail::refuse(queue, peer_number);
    }
    platform::barrier<kScope>();
    Word status = kOk;
    if (platform::is_first<kScope>()) {
        status = detail::end_of_posted(queue, peer_number, peer);
    }
    return platform::agree<kScope>(status);
}

// Does flush() for all peers; returns the first status that is not kOk.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word quiet(const Queue* queue, After after = After()) {
    if (after.status != kOk) {
        return after.status;
    }
    Word status = queue->layout == kLayout ? kOk : kFailed;
    for (Word peer = 0; queue->layout == kLayout && peer < queue->peer_count; ++peer) {
        const Word found = flush<kScope>(queue, peer);
        status = status == kOk ? found : status;
    }
    return status;
}

// Lets nothing that these threads do next at a peer be seen there before what they have done before. Does not wait.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word fence(const Queue* queue, Word peer_number,
                                                                    After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    if (after.status != kOk) {
        return after.status;
    }
    if (!detail::exists(peer)) {
        return detail::refuse(queue, peer_number);
    }
    platform::barrier<kScope>();
    Word status = kOk;
    if (platform::is_first<kScope>()) {
        if (peer.mode == kPeer) {
            (void)platform::fetch_add(peer.posted, 0); // fence() is empty where fetch_add_near() orders by itself
        } else if (peer.mode == kMlx5) {
            status = detail::pair::fence(queue, peer_number);
        } else {
            status = detail::fifo::fence(queue, peer_number, peer);
        }
    }
    return platform::agree<kScope>(status);
}

// Adds to a peer's 8-byte word.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Found fetch_add(const Queue* queue, Word peer_number, Word offset, Word value,
                                  After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    if (after.status != kOk) {
        return {after.status, 0};
    }
    if (!detail::is_word(peer, offset, kRead | kWrite)) {
        return {detail::refuse(queue, peer_number), 0};
    }
    platform::barrier<kScope>();
    Found found{kOk, 0};
    if (platform::is_first<kScope>()) {
        if (peer.mode == kPeer) {
            found.value = platform::fetch_add(peer.base + offset, value);
        } else {
            found = detail::remote_atomic(queue, Op::fetch_add, peer_number, peer.mode, offset, value, 0);
        }
    }
    return {platform::agree<kScope>(found.status), platform::from_first<kScope>(found.value)};
}

// Sets a peer's 8-byte word to `desired` if it is `expected`.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Found compare_swap(const Queue* queue, Word peer_number, Word offset, Word expected, Word desired,
                                     After after = After()) {
    const Peer peer = detail::peer_of(queue, peer_number);
    if (after.status != kOk) {
        return {after.status, 0};
    }
    if (!detail::is_word(peer, offset, kRead | kWrite)) {
        return {detail::refuse(queue, peer_number), 0};
    }
    platform::barrier<kScope>();
    Found found{kOk, 0};
    if (platform::is_first<kScope>()) {
        if (peer.mode == kPeer) {
            found.value = platform::compare_swap(peer.base + offset, expected, desired);
        } else {
            found = detail::remote_atomic(queue, Op::compare_swap, peer_number, peer.mode, offset, desired, expected);
        }
    }
    return {platform::agree<kScope>(found.status), platform::from_first<kScope>(found.value)};
}

} // namespace zerohop::device
