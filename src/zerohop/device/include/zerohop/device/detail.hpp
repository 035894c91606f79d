// Declares the parts of the functions for kernels: checks, entries of the FIFO, copies.
#pragma once

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

// Has flushes of all peers look at the states.
ZEROHOP_DEVICE_FN void fail_all(const Queue* queue) {
    for (Word i = 0; i < queue->peer_count; ++i) {
        (void)platform::fetch_or_near(queue->peers[i].posted, kFailure);
    }
}

// Notes, for the host and for all waits, that a request cannot be right.
ZEROHOP_DEVICE_FN Word refuse(const Queue* queue, const Peer& peer) {
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

// --- entries; one thread ---------------------------------------------------------------------------------------------

// `taken`: entries that were taken out, from an earlier look.
ZEROHOP_DEVICE_FN Word wait_for_room(const Queue* queue, Word index, Word taken) {
    const Word slots = platform::read_once(&queue->slots);
    if (index - (taken & ~kPolled) < slots) {
        return kOk;
    }
    // The host takes entries, however many others wait for slots.
    const Word status = wait_for_count(queue, Peer{}, platform::read_once(&queue->taken),
                                       platform::read_once(&queue->taken_copy), index - slots + 1, true)
                            .status;
    if (status == kTimedOut) {
        // The index that this entry has taken is never written, and the host cannot pass it: the Queue ends.
        platform::store_release(queue->state, status);
        fail_all(queue);
    }
    return status;
}

ZEROHOP_DEVICE_FN void write_entry(const Queue* queue, Word index, Entry entry) {
    const Word at =
        platform::read_once(&queue->fifo) + (index & (platform::read_once(&queue->slots) - 1)) * sizeof(Entry);
    const Word lap = lap_of(index, platform::read_once(&queue->slots));
    platform::store_pair(at, entry.first | lap, entry.second | lap);
}

// `count`: 1 or 2 entries. Gives the index of the last one.
ZEROHOP_DEVICE_FN Found post(const Queue* queue, const Peer& peer, const Entry* entries, Word count) {
    // An entry is counted before it takes an index: flush() waits until as many have ended as were counted, in the
    // order of indexes. The host sees it after the bytes that it tells of.
    (void)platform::fetch_add_near(peer.posted, count);
    platform::fence();
    const Word index = platform::fetch_add_near(platform::read_once(&queue->head), count);
    const Word taken =
        platform::load_acquire(platform::read_once(&queue->taken_copy)); // under way together with the index
    const Word status = wait_for_room(queue, index + count - 1, taken);
    for (Word i = 0; i < count && status == kOk; ++i) {
        write_entry(queue, index + i, entries[i]);
    }
    return {status, index + count - 1};
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

ZEROHOP_DEVICE_FN Found result(const Queue* queue, const Peer& peer, Found posted) {
    if (posted.status != kOk) {
        return {posted.status, 0};
    }
    // Until it is read the host puts no other result there. That of an earlier entry may still stand there.
    const Word at = platform::read_once(&queue->results) +
                    (posted.value & (platform::read_once(&queue->slots) - 1)) * sizeof(Result);
    const Word status = wait_for(queue, peer, at + sizeof(Word), posted.value + 1, false);
    if (status != kOk) {
        return {status, 0};
    }
    if (platform::load_acquire(at + sizeof(Word)) != posted.value + 1) {
        return {kFailed, 0}; // the result was there for longer than the timeout
    }
    const Word value = platform::load_acquire(at);
    platform::store_release(at + sizeof(Word), 0);
    return {kOk, value};
}

// --- copies ----------------------------------------------------------------------------------------------------------

template <Scope kScope> ZEROHOP_DEVICE_FN void copy(Word target, Word source, Word nbytes) {
    constexpr Word kPiece = sizeof(platform::Piece);
    constexpr Word kAtOnce = 4; // loads that are under way before the first store waits for one
    const Word first = platform::rank<kScope>();
    const Word threads = platform::size<kScope>();
    Word done = 0;
    if ((target | source) % kPiece == 0) {
        const Word step = threads * kPiece;
        done = nbytes / kPiece * kPiece;
        Word i = first * kPiece;
        for (; i + (kAtOnce - 1) * step < done; i += kAtOnce * step) {
            platform::Piece held[kAtOnce];
            for (Word k = 0; k < kAtOnce; ++k) {
                held[k] = platform::load_piece(source + i + k * step);
            }
            for (Word k = 0; k < kAtOnce; ++k) {
                platform::store_piece(target + i + k * step, held[k]);
            }
        }
        for (; i < done; i += step) {
            platform::store_piece(target + i, platform::load_piece(source + i));
        }
    }
    for (Word i = done + first; i < nbytes; i += threads) {
        platform::copy_byte(target + i, source + i);
    }
}

// Posts an atomic to the NIC or the proxy, and waits for the value from before. is_word() has checked the word.
// `compare`: null for fetch_add.
ZEROHOP_DEVICE_FN Found remote_atomic(const Queue* queue, Word peer_number, const Peer& peer, Word offset, Word operand,
                                      const Word* compare) {
    if (peer.mode == kMlx5) {
        const mlx5::Opcode opcode = compare == nullptr ? mlx5::Opcode::fetch_add : mlx5::Opcode::compare_swap;
        return pair::atomic(queue, peer_number, opcode, offset, operand, compare == nullptr ? 0 : *compare);
    }
    if (compare == nullptr) {
        const Entry entry = value_entry(Op::fetch_add, peer_number, offset, operand);
        return result(queue, peer, post(queue, peer, &entry, 1));
    }
    const Entry entries[2] = {value_entry(Op::compare, peer_number, offset, *compare),
                              value_entry(Op::compare_swap, peer_number, offset, operand)};
    return result(queue, peer, post(queue, peer, entries, 2));
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
    if (platform::is_first<kScope>() && peer.mode == kMlx5) {
        status = pair::transfer(queue, op, peer_number, there, local_number, here, nbytes);
    } else if (platform::is_first<kScope>()) {
        Word done = 0;
        do {
            const Word some = nbytes - done < kMostBytes ? nbytes - done : kMostBytes;
            const Entry entry = transfer_entry(op, peer_number, there + done, local_number, here + done, some);
            status = post(queue, peer, &entry, 1).status;
            done += some;
        } while (done < nbytes && status == kOk);
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
    if (is_first && peer.mode == kMlx5) {
        status = pair::signal(queue, peer_number, offset, value, add);
    } else if (is_first) {
        const Entry entry = value_entry(add ? Op::add : Op::set, peer_number, offset, value);
        status = post(queue, peer, &entry, 1).status;
    }
    return platform::agree<kScope>(status);
}

} // namespace detail

} // namespace zerohop::device
