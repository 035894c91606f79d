// The functions that kernels in CUDA and HIP C++ call on a Queue; zerohop.device.include_dir() is the folder.
//
// A kernel takes `queue.pointer` as a `const zerohop::device::Queue*`. `peer` and `local` are places in the lists that
// the Queue was made of; offsets and lengths are bytes. With Scope::block (the default) all threads of a block make a
// call, with the same arguments; with Scope::warp all threads of a full warp do; with Scope::thread one does. Each call
// posts one request. Every function returns kOk, kTimedOut, kPeerLost, kFailed or kClosed, to all threads that have
// called it. HIP: compiled, not verified on hardware.
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
    return offset <= limit && nbytes <= limit - offset;
}

ZEROHOP_DEVICE_FN const Peer* peer_of(const Queue* queue, Word peer) {
    return peer < queue->peer_count ? reinterpret_cast<const Peer*>(queue->peers) + peer : nullptr;
}

ZEROHOP_DEVICE_FN const Local* local_of(const Queue* queue, Word local) {
    return local < queue->local_count ? reinterpret_cast<const Local*>(queue->locals) + local : nullptr;
}

// Notes, for the host and for all waits, that a request cannot be right.
ZEROHOP_DEVICE_FN Word refuse(const Queue* queue, const Peer* peer) {
    if (queue->layout == kLayout) {
        platform::publish(peer != nullptr ? peer->state : queue->state, kFailed);
    }
    return kFailed;
}

ZEROHOP_DEVICE_FN Word state_of(const Queue* queue, const Peer* peer) {
    const Word state = platform::look(queue->state);
    return state == kOk && peer != nullptr ? platform::look(peer->state) : state;
}

// Tells whether a peer has an aligned word at an offset, and the handle gives these rights.
ZEROHOP_DEVICE_FN bool is_word(const Peer* peer, Word offset, Word rights) {
    return peer != nullptr && (peer->rights & rights) == rights && (peer->base + offset) % 8 == 0 &&
           fits(offset, 8, peer->nbytes);
}

ZEROHOP_DEVICE_FN bool reached(Word address, Word number) { // as signed numbers
    return static_cast<long long>(platform::look(address)) >= static_cast<long long>(number);
}

// Waits until a word that others change is a number or more.
ZEROHOP_DEVICE_FN Word wait_for(const Queue* queue, const Peer* peer, Word address, Word number) {
    constexpr unsigned kSpins = 64; // between two looks at words of the host, which take longer
    const Word until = platform::now_ns() + queue->timeout_ns;
    Word status = kOk;
    for (unsigned spins = 1; !reached(address, number); ++spins) {
        platform::relax();
        if (spins % kSpins == 0) {
            status = state_of(queue, peer);
        }
        if (status == kOk && platform::now_ns() > until) {
            status = kTimedOut;
        }
        if (status != kOk) {
            return reached(address, number) ? kOk : status;
        }
    }
    return kOk;
}

// --- entries; one thread ---------------------------------------------------------------------------------------------

ZEROHOP_DEVICE_FN Word wait_for_room(const Queue* queue, Word index) {
    if (index - platform::look(queue->seen) < queue->slots) {
        return kOk;
    }
    Word taken = platform::look(queue->taken);
    Word until = platform::now_ns() + queue->timeout_ns;
    while (index - taken >= queue->slots) {
        platform::relax();
        Word status = platform::look(queue->state);
        const Word now = platform::look(queue->taken);
        if (now != taken) { // the host takes entries, however many others wait for slots
            taken = now;
            until = platform::now_ns() + queue->timeout_ns;
        } else if (status == kOk && platform::now_ns() > until) {
            // The entry has its index by now, and nobody writes it: the FIFO ends here, for all.
            status = kTimedOut;
            platform::publish(queue->state, status);
        }
        if (status != kOk) {
            return status;
        }
    }
    platform::publish(queue->seen, taken);
    return kOk;
}

ZEROHOP_DEVICE_FN void write_entry(const Queue* queue, Word index, Entry entry) {
    const Word at = queue->fifo + (index & (queue->slots - 1)) * sizeof(Entry);
    const Word lap = lap_of(index, queue->slots);
    platform::publish(at, entry.first | lap);
    platform::publish(at + sizeof(Word), entry.second | lap);
}

// `count`: 1 or 2 entries. Gives the index of the last one.
ZEROHOP_DEVICE_FN Found post(const Queue* queue, const Peer* peer, const Entry* entries, Word count) {
    platform::add(peer->posted, count);
    const Word index = platform::add(queue->head, count);
    const Word status = wait_for_room(queue, index + count - 1);
    for (Word i = 0; i < count && status == kOk; ++i) {
        write_entry(queue, index + i, entries[i]);
    }
    return {status, index + count - 1};
}

ZEROHOP_DEVICE_FN Found result(const Queue* queue, const Peer* peer, Found posted) {
    if (posted.status != kOk) {
        return {posted.status, 0};
    }
    // Until it is read the host puts no other result there. That of an earlier entry may still stand there.
    const Word at = queue->results + (posted.value & (queue->slots - 1)) * sizeof(Result);
    const Word status = wait_for(queue, peer, at + sizeof(Word), posted.value + 1);
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

struct alignas(16) Piece {
    Word words[2];
};

template <Scope kScope> ZEROHOP_DEVICE_FN void copy(Word target, Word source, Word nbytes) {
    const Word first = platform::rank<kScope>();
    const Word step = platform::size<kScope>();
    Word done = 0;
    if ((target | source) % sizeof(Piece) == 0) {
        auto* to = reinterpret_cast<Piece*>(target);
        const auto* from = reinterpret_cast<const Piece*>(source);
        const Word pieces = nbytes / sizeof(Piece);
        for (Word i = first; i < pieces; i += step) {
            to[i] = from[i];
        }
        done = pieces * sizeof(Piece);
    }
    auto* to = reinterpret_cast<unsigned char*>(target);
    const auto* from = reinterpret_cast<const unsigned char*>(source);
    for (Word i = done + first; i < nbytes; i += step) {
        to[i] = from[i];
    }
}

template <Scope kScope>
ZEROHOP_DEVICE_FN Word transfer(const Queue* queue, Op op, Word peer_number, Word there, Word local_number, Word here,
                                Word nbytes) {
    const Peer* peer = peer_of(queue, peer_number);
    const Local* local = local_of(queue, local_number);
    const bool put = op == Op::put;
    if (queue->layout != kLayout || peer == nullptr || local == nullptr || !fits(there, nbytes, peer->nbytes) ||
        !fits(here, nbytes, local->nbytes) || (peer->rights & (put ? kWrite : kRead)) == 0 ||
        (local->rights & (put ? kRead : kWrite)) == 0) {
        return refuse(queue, peer);
    }
    platform::barrier<kScope>(); // the bytes of all threads are there before any is copied, or the first one posts
    if (peer->mode == kPeer) {
        const Word remote = peer->base + there;
        const Word own = local->base + here;
        copy<kScope>(put ? remote : own, put ? own : remote, nbytes);
        return kOk;
    }
    Word status = kOk;
    if (platform::rank<kScope>() == 0) {
        Word done = 0;
        do {
            const Word some = nbytes - done < kMostBytes ? nbytes - done : kMostBytes;
            const Entry entry = transfer_entry(op, peer_number, there + done, local_number, here + done, some);
            status = post(queue, peer, &entry, 1).status;
            done += some;
        } while (done < nbytes && status == kOk);
    }
    return platform::from_first<kScope>(status);
}

} // namespace detail

// Writes `nbytes` of a local to a peer's memory. The local may be changed after flush().
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word put(const Queue* queue, Word peer, Word dst_offset, Word local, Word src_offset, Word nbytes) {
    return detail::transfer<kScope>(queue, Op::put, peer, dst_offset, local, src_offset, nbytes);
}

// Reads `nbytes` of a peer's memory into a local. They are there after flush().
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word get(const Queue* queue, Word peer, Word src_offset, Word local, Word dst_offset, Word nbytes) {
    return detail::transfer<kScope>(queue, Op::get, peer, src_offset, local, dst_offset, nbytes);
}

// Sets a peer's 8-byte word, or adds to it, after all that these threads have put there before is there.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word signal(const Queue* queue, Word peer_number, Word offset, Word value, bool add = false) {
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || !detail::is_word(peer, offset, add ? kRead | kWrite : kWrite)) {
        return detail::refuse(queue, peer);
    }
    platform::barrier<kScope>();
    Word status = kOk;
    if (platform::rank<kScope>() == 0) {
        if (peer->mode != kPeer) {
            const Entry entry = value_entry(add ? Op::add : Op::set, peer_number, offset, value);
            status = detail::post(queue, peer, &entry, 1).status;
        } else if (add) {
            (void)platform::add(peer->base + offset, value);
        } else {
            platform::publish(peer->base + offset, value);
        }
    }
    return platform::from_first<kScope>(status);
}

// Puts, and then signals at `signal_offset` of the same peer's memory.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word put_signal(const Queue* queue, Word peer, Word dst_offset, Word local, Word src_offset,
                                  Word nbytes, Word signal_offset, Word value, bool add = false) {
    const Word status = put<kScope>(queue, peer, dst_offset, local, src_offset, nbytes);
    return status == kOk ? signal<kScope>(queue, peer, signal_offset, value, add) : status;
}

// Waits until the 8-byte word at an offset of a local is `value` or more; what was put before it is there then. The
// wait ends with the Queue's timeout, and with the loss of `peer`; kMaxPeers: of none.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Word wait_signal(const Queue* queue, Word local_number, Word offset, Word value,
                                   Word peer_number = kNoPeer) {
    const Local* local = detail::local_of(queue, local_number);
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || local == nullptr || (local->base + offset) % 8 != 0 ||
        !detail::fits(offset, 8, local->nbytes) || (peer == nullptr && peer_number != kNoPeer)) {
        return detail::refuse(queue, nullptr);
    }
    Word status = kOk;
    if (platform::rank<kScope>() == 0) {
        status = detail::wait_for(queue, peer, local->base + offset, value);
    }
    return platform::from_first<kScope>(status);
}

// Waits until everything that was posted to a peer by now is there, and gets have arrived.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word flush(const Queue* queue, Word peer_number) {
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || peer == nullptr) {
        return detail::refuse(queue, peer);
    }
    platform::barrier<kScope>();
    Word status = kOk;
    if (platform::rank<kScope>() == 0) {
        const Word posted = platform::add(peer->posted, 0);
        if (peer->mode != kPeer) {
            status = detail::wait_for(queue, peer, peer->ended, posted);
        }
        // A failure is seen before the entries that it has ended.
        status = status == kOk ? detail::state_of(queue, peer) : status;
    }
    return platform::from_first<kScope>(status);
}

// Does flush() for all peers; returns the first status that is not kOk.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word quiet(const Queue* queue) {
    Word status = queue->layout == kLayout ? kOk : kFailed;
    for (Word peer = 0; queue->layout == kLayout && peer < queue->peer_count; ++peer) {
        const Word found = flush<kScope>(queue, peer);
        status = status == kOk ? found : status;
    }
    return status;
}

// Lets nothing that these threads do next at a peer be seen there before what they have done before. Does not wait.
template <Scope kScope = Scope::block> ZEROHOP_DEVICE_FN Word fence(const Queue* queue, Word peer_number) {
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || peer == nullptr) {
        return detail::refuse(queue, peer);
    }
    platform::barrier<kScope>();
    Word status = kOk;
    if (platform::rank<kScope>() == 0) {
        if (peer->mode == kPeer) {
            (void)platform::add(peer->posted, 0);
        } else {
            const Entry entry = value_entry(Op::fence, peer_number, 0, 0);
            status = detail::post(queue, peer, &entry, 1).status;
        }
    }
    return platform::from_first<kScope>(status);
}

// Adds to a peer's 8-byte word.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Found fetch_add(const Queue* queue, Word peer_number, Word offset, Word value) {
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || !detail::is_word(peer, offset, kRead | kWrite)) {
        return {detail::refuse(queue, peer), 0};
    }
    platform::barrier<kScope>();
    Found found{kOk, 0};
    if (platform::rank<kScope>() == 0) {
        if (peer->mode == kPeer) {
            found.value = platform::add(peer->base + offset, value);
        } else {
            const Entry entry = value_entry(Op::fetch_add, peer_number, offset, value);
            found = detail::result(queue, peer, detail::post(queue, peer, &entry, 1));
        }
    }
    found.status = platform::from_first<kScope>(found.status);
    found.value = platform::from_first<kScope>(found.value);
    return found;
}

// Sets a peer's 8-byte word to `desired` if it is `expected`.
template <Scope kScope = Scope::block>
ZEROHOP_DEVICE_FN Found compare_swap(const Queue* queue, Word peer_number, Word offset, Word expected, Word desired) {
    const Peer* peer = detail::peer_of(queue, peer_number);
    if (queue->layout != kLayout || !detail::is_word(peer, offset, kRead | kWrite)) {
        return {detail::refuse(queue, peer), 0};
    }
    platform::barrier<kScope>();
    Found found{kOk, 0};
    if (platform::rank<kScope>() == 0) {
        if (peer->mode == kPeer) {
            found.value = platform::swap_if(peer->base + offset, expected, desired);
        } else {
            const Entry entries[2] = {value_entry(Op::compare, peer_number, offset, expected),
                                      value_entry(Op::compare_swap, peer_number, offset, desired)};
            found = detail::result(queue, peer, detail::post(queue, peer, entries, 2));
        }
    }
    found.status = platform::from_first<kScope>(found.status);
    found.value = platform::from_first<kScope>(found.value);
    return found;
}

} // namespace zerohop::device
