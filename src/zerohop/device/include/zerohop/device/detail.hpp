// Declares the parts of the functions for kernels: checks, copies, and which of the ways a call goes.
#pragma once

#include "zerohop/device/fifo.hpp"
#include "zerohop/device/layout.hpp"
#include "zerohop/device/pair.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/tables.hpp"
#include "zerohop/device/threads.hpp"
#include "zerohop/device/waits.hpp"

namespace zerohop::device {

namespace detail {

ZEROHOP_DEVICE_FN bool fits(Word offset, Word nbytes, Word limit) { // a negative number is a very large one
    return (offset <= limit) & (nbytes <= limit - offset);          // without a branch, which would wait for one load
}

// Notes, for the host and for all waits, that a request to a peer cannot be right; kNoPeer: to none.
ZEROHOP_OUT_OF_LINE Word refuse(const Queue* queue, Word peer_number) {
    const Peer peer = peer_of(queue, peer_number);
    if (queue->layout == kLayout) {
        platform::store_release(exists(peer) ? peer.state : queue->state, kFailed);
        if (exists(peer)) {
            (void)platform::fetch_or_near(peer.posted, kFailure);
        } else {
            fail_all(queue);
        }
    }
    return kFailed;
}

// Tells whether a peer has an aligned word at an offset, and the handle gives these rights.
ZEROHOP_DEVICE_FN bool is_word(const Peer& peer, Word offset, Word rights) {
    return ((peer.rights & rights) == rights) & ((peer.base + offset) % 8 == 0) & fits(offset, 8, peer.nbytes);
}

// Tells whether both ranges lie within their memory, and its rights allow the transfer.
ZEROHOP_DEVICE_FN bool is_transfer(Op op, const Peer& peer, Word there, const Local& local, Word here, Word nbytes) {
    const bool put = op == Op::put;
    return fits(there, nbytes, peer.nbytes) & fits(here, nbytes, local.nbytes) &
           ((peer.rights & (put ? kWrite : kRead)) != 0) & ((local.rights & (put ? kRead : kWrite)) != 0);
}

// Waits until all that was posted to a peer has ended.
ZEROHOP_DEVICE_FN Word end_of_posted(const Queue* queue, Word peer_number, const Peer& peer) {
    if (peer.mode == kMlx5) {
        return pair::flush(queue, peer_number);
    }
    if (peer.mode == kPeer) {
        platform::fence();
    }
    Found found{kOk, platform::fetch_add_near(peer.posted, 0)};
    if ((found.value & kFailure) == 0) {
        found = peer.mode == kPeer ? Found{kOk, platform::load_acquire(peer.ended)}
                                   : wait_for_count(queue, peer, peer.ended, peer.ended_copy, found.value, false);
    }
    if (found.status == kOk && (found.value & kFailure) != 0) {
        const Word status = state_of(queue, peer);
        return status == kOk ? kFailed : status;
    }
    return found.status;
}

// --- copies ----------------------------------------------------------------------------------------------------------

// Counts in 32 bits, which takes half the instructions; so `nbytes` is 1 GiB at most.
template <Scope kScope> ZEROHOP_DEVICE_FN void copy_some(Word target, Word source, unsigned nbytes) {
    constexpr unsigned kPiece = sizeof(platform::Piece);
    constexpr unsigned kAtOnce = 4; // loads that are under way before the first store waits for one
    const unsigned first = platform::rank<kScope>();
    const unsigned threads = platform::size<kScope>();
    unsigned done = 0;
    if ((target | source) % kPiece == 0) {
        const unsigned step = threads * kPiece;
        done = nbytes / kPiece * kPiece;
        unsigned i = first * kPiece;
        for (; i + (kAtOnce - 1) * step < done; i += kAtOnce * step) {
            platform::Piece held[kAtOnce];
            for (unsigned k = 0; k < kAtOnce; ++k) {
                held[k] = platform::load_piece(source + i + k * step);
            }
            for (unsigned k = 0; k < kAtOnce; ++k) {
                platform::store_piece(target + i + k * step, held[k]);
            }
        }
        for (; i < done; i += step) {
            platform::store_piece(target + i, platform::load_piece(source + i));
        }
    }
    for (unsigned i = done + first; i < nbytes; i += threads) {
        platform::copy_byte(target + i, source + i);
    }
}

template <Scope kScope> ZEROHOP_DEVICE_FN void copy(Word target, Word source, Word nbytes) {
    constexpr Word kMostAtOnce = Word(1) << 30;
    Word done = 0;
    do {
        const Word some = nbytes - done < kMostAtOnce ? nbytes - done : kMostAtOnce;
        copy_some<kScope>(target + done, source + done, static_cast<unsigned>(some));
        done += some;
    } while (done < nbytes);
}

// Posts an atomic to the NIC or the proxy, and waits for the value from before. is_word() has checked the word.
// `expected` counts only for compare_swap.
ZEROHOP_DEVICE_FN Found remote_atomic(const Queue* queue, Op op, Word peer_number, Word mode, Word offset, Word operand,
                                      Word expected) {
    if (mode == kMlx5) {
        const mlx5::Opcode opcode = op == Op::compare_swap ? mlx5::Opcode::compare_swap : mlx5::Opcode::fetch_add;
        return pair::atomic(queue, peer_number, opcode, offset, operand, expected);
    }
    return fifo::atomic(queue, op, peer_number, offset, operand, expected);
}

// Carries out a transfer that is_transfer() has allowed, or posts it.
template <Scope kScope>
ZEROHOP_DEVICE_FN Word transfer(const Queue* queue, Op op, Word peer_number, const Peer& peer, Word there,
                                Word local_number, const Local& local, Word here, Word nbytes) {
    platform::barrier<kScope>(); // the bytes of all threads are there before any is copied, or the first one posts
    if (peer.mode == kPeer) {
        const Word remote = peer.base + there;
        const Word own = local.base + here;
        copy<kScope>(op == Op::put ? remote : own, op == Op::put ? own : remote, nbytes);
        return kOk;
    }
    Word status = kOk;
    if (platform::is_first<kScope>()) {
        status = peer.mode == kMlx5 ? pair::transfer(queue, op, peer_number, there, local_number, here, nbytes)
                                    : fifo::transfer(queue, op, peer_number, there, local_number, here, nbytes);
    }
    return platform::agree<kScope>(status);
}

// Sets or changes a word that is_word() has allowed, after all that these threads have done.
template <Scope kScope>
ZEROHOP_DEVICE_FN Word send_signal(const Queue* queue, Word peer_number, const Peer& peer, Word offset, Word value,
                                   bool add) {
    platform::barrier<kScope>();
    const bool is_first = platform::is_first<kScope>();
    if (peer.mode == kPeer) {
        if (is_first && add) {
            (void)platform::fetch_add(peer.base + offset, value);
        } else if (is_first) {
            platform::store_release(peer.base + offset, value);
        }
        return kOk;
    }
    Word status = kOk;
    if (is_first) {
        status = peer.mode == kMlx5 ? pair::signal(queue, peer_number, offset, value, add)
                                    : fifo::signal(queue, peer_number, offset, value, add);
    }
    return platform::agree<kScope>(status);
}

} // namespace detail

} // namespace zerohop::device
