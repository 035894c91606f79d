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

} // namespace zerohop::device
