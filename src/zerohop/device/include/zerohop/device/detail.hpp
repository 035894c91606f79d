// Declares the parts of the functions for kernels: checks, bounded waits, entries of the FIFO, copies.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"

namespace zerohop::device {

struct Found {
    Word status;
    Word value; // from before
};

namespace detail {

ZEROHOP_DEVICE_FN bool fits(Word offset, Word nbytes, Word limit) { // a negative number is a very large one
    return (offset <= limit) & (nbytes <= limit - offset);          // without a branch, which would wait for one load
}

// Returns the entry of a peer; an empty one if there is no such peer, or the kernel has another layout.
ZEROHOP_DEVICE_FN Peer peer_of(const Queue* queue, Word number) {
    const Word layout = platform::read_once(&queue->layout);
    Peer found = platform::read_all(queue->peers + (number & (kMaxPeers - 1)));
    if (number >= kMaxPeers || layout != kLayout) {
        found = Peer{};
    }
    return found;
}

// Likewise of a local.
ZEROHOP_DEVICE_FN Local local_of(const Queue* queue, Word number) {
    const Word layout = platform::read_once(&queue->layout);
    Local found = platform::read_all(queue->locals + (number & (kMaxLocals - 1)));
    if (number >= kMaxLocals || layout != kLayout) {
        found = Local{};
    }
    return found;
}

ZEROHOP_DEVICE_FN bool exists(const Peer& peer) {
    return peer.posted != 0;
}

// Notes, for the host and for all waits, that a request cannot be right.
ZEROHOP_DEVICE_FN Word refuse(const Queue* queue, const Peer& peer) {
    if (queue->layout == kLayout) {
        platform::publish(exists(peer) ? peer.state : queue->state, kFailed);
        for (Word i = 0; !exists(peer) && i < queue->peer_count; ++i) {
            (void)platform::mark(queue->peers[i].posted, kFailure);
        }
        if (exists(peer)) {
            (void)platform::mark(peer.posted, kFailure);
        }
    }
    return kFailed;
}

ZEROHOP_DEVICE_FN Word state_of(const Queue* queue, const Peer& peer) {
    const Word state = platform::look(queue->state);
    return state == kOk && exists(peer) ? platform::look(peer.state) : state;
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

ZEROHOP_DEVICE_FN bool reached(Word address, Word number, bool near) { // as signed numbers
    const Word found = near ? platform::look_near(address) : platform::look(address);
    return static_cast<long long>(found) >= static_cast<long long>(number);
}

// Waits until a word that others change is a number or more. `near`: it is in memory of this device.
ZEROHOP_DEVICE_FN Word wait_for(const Queue* queue, const Peer& peer, Word address, Word number, bool near) {
    // Looks between two at the clock and at words of the host, which take longer.
    constexpr unsigned kSpins = 64;
    const Word until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
    for (;;) {
        ZEROHOP_NO_UNROLL
        for (unsigned spins = 0; spins < kSpins; ++spins) {
            if (reached(address, number, near)) {
                return kOk;
            }
            platform::relax();
        }
        Word status = state_of(queue, peer);
        if (status == kOk && platform::now_ns() > until) {
            status = kTimedOut;
        }
        if (status != kOk) {
            return reached(address, number, near) ? kOk : status;
        }
    }
}

ZEROHOP_DEVICE_FN bool says(Word value, Word number) { // enough, or that something has failed
    return (value & kFailure) != 0 || value >= number;
}

// Waits until a word in which the host counts says enough; gives what it says.
//
// One of all kernels that wait for the word looks at it. It keeps a copy in the memory of the device for the others:
// looks of them all over PCIe would leave no room for their entries. `renews`: the time begins anew when the host has
// counted on.
ZEROHOP_DEVICE_FN Found follow(const Queue* queue, const Peer& peer, Word host, Word copy, Word number, bool renews) {
    constexpr unsigned kSpins = 64;
    Word value = platform::mark(copy, kRenewed);
    bool looks = (value & kRenewed) == 0;
    Word status = kOk;
    if (!says(value & ~kRenewed, number)) {
        Word begun_with = value;
        Word until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
        ZEROHOP_NO_UNROLL
        for (unsigned spins = 1;; ++spins) {
            // One loop for both: threads of a warp may have to take their turns together.
            if (looks) {
                const Word found = platform::look(host);
                if (found != value && !says(found, number)) {
                    platform::publish_near(copy, found | kRenewed);
                }
                value = found;
            } else {
                value = platform::look_near(copy);
                looks = (value & kRenewed) == 0 && platform::swap_if(copy, value, value | kRenewed) == value;
            }
            if (says(value & ~kRenewed, number)) {
                break;
            }
            platform::relax();
            if (spins % kSpins != 0) {
                continue;
            }
            if (renews && ((value ^ begun_with) & ~kRenewed) != 0) {
                begun_with = value;
                until = platform::now_ns() + platform::read_once(&queue->timeout_ns);
            }
            // One of them is enough to look at states, too.
            status = looks ? state_of(queue, peer) : kOk;
            if (status == kOk && platform::now_ns() > until) {
                status = kTimedOut;
            }
            if (status != kOk) {
                value = platform::look(host);
                status = says(value, number) ? kOk : status;
                break;
            }
        }
    }
    if (looks) {
        platform::publish_near(copy, value & ~kRenewed);
    }
    return {status, value & ~kRenewed};
}

// --- entries; one thread ---------------------------------------------------------------------------------------------

// `taken`: entries that were taken out, from an earlier look.
ZEROHOP_DEVICE_FN Word wait_for_room(const Queue* queue, Word index, Word taken) {
    const Word slots = platform::read_once(&queue->slots);
    if (index - (taken & ~kRenewed) < slots) {
        return kOk;
    }
    // The host takes entries, however many others wait for slots.
    const Word status = follow(queue, Peer{}, platform::read_once(&queue->taken), platform::read_once(&queue->seen),
                               index - slots + 1, true)
                            .status;
    if (status == kTimedOut) {
        // The entry has its index by now, and nobody writes it: the FIFO ends here, for all.
        platform::publish(queue->state, status);
    }
    return status;
}

ZEROHOP_DEVICE_FN void write_entry(const Queue* queue, Word index, Entry entry) {
    const Word at =
        platform::read_once(&queue->fifo) + (index & (platform::read_once(&queue->slots) - 1)) * sizeof(Entry);
    const Word lap = lap_of(index, platform::read_once(&queue->slots));
    platform::note_pair(at, entry.first | lap, entry.second | lap);
}

// `count`: 1 or 2 entries. Gives the index of the last one.
ZEROHOP_DEVICE_FN Found post(const Queue* queue, const Peer& peer, const Entry* entries, Word count) {
    // These are under way while order() waits.
    (void)platform::count(peer.posted, count);
    const Word index = platform::count(platform::read_once(&queue->head), count);
    const Word taken = platform::peek(platform::read_once(&queue->seen));
    platform::order(); // the host sees the entry after the bytes that it tells of
    const Word status = wait_for_room(queue, index + count - 1, taken);
    for (Word i = 0; i < count && status == kOk; ++i) {
        write_entry(queue, index + i, entries[i]);
    }
    return {status, index + count - 1};
}

// Waits until all that was posted to a peer has ended.
ZEROHOP_DEVICE_FN Word end_of_posted(const Queue* queue, const Peer& peer) {
    if (peer.mode == kPeer) {
        platform::order();
    }
    Found found{kOk, platform::count(peer.posted, 0)};
    if ((found.value & kFailure) == 0) {
        found = peer.mode == kPeer ? Found{kOk, platform::look(peer.ended)}
                                   : follow(queue, peer, peer.ended, peer.seen, found.value, false);
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
    if (platform::look(at + sizeof(Word)) != posted.value + 1) {
        return {kFailed, 0}; // the result was there for longer than the timeout
    }
    const Word value = platform::look(at);
    platform::publish(at + sizeof(Word), 0);
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
            (void)platform::add(peer.base + offset, value);
        } else if (is_first) {
            platform::publish(peer.base + offset, value);
        }
        return kOk;
    }
    Word status = kOk;
    if (is_first) {
        const Entry entry = value_entry(add ? Op::add : Op::set, peer_number, offset, value);
        status = post(queue, peer, &entry, 1).status;
    }
    return platform::agree<kScope>(status);
}

} // namespace detail

} // namespace zerohop::device
