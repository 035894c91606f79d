// Posts entries to the FIFO of a Queue, which the host takes out, and waits for their ends. One thread calls each.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/tables.hpp"
#include "zerohop/device/waits.hpp"

namespace zerohop::device {

namespace detail {

// Has flushes of all peers look at the states.
ZEROHOP_DEVICE_FN void fail_all(const Queue* queue) {
    for (Word i = 0; i < queue->peer_count; ++i) {
        (void)platform::fetch_or_near(queue->peers[i].posted, kFailure);
    }
}

namespace fifo {

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
    // The index, the counter and the fence take as long together as one of them. The host sees the entry after the
    // bytes that it tells of.
    const Word index = platform::fetch_add_near(platform::read_once(&queue->head), count);
    const Word taken = platform::load_relaxed(platform::read_once(&queue->taken_copy));
    platform::fence();
    const Word status = wait_for_room(queue, index + count - 1, taken);
    for (Word i = 0; i < count && status == kOk; ++i) {
        write_entry(queue, index + i, entries[i]);
    }
    platform::raise_near(peer.posted, index + count); // flush() waits until the entries before that index have ended
    return {status, index + count - 1};
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

// The functions out of line take indices. Passing an entry by address would force it out of registers in every caller.
ZEROHOP_OUT_OF_LINE Word transfer(const Queue* queue, Op op, Word peer_number, Word there, Word local_number, Word here,
                                  Word nbytes) {
    const Peer peer = peer_of(queue, peer_number);
    Word status = kOk;
    Word done = 0;
    do {
        const Word some = nbytes - done < kMostBytes ? nbytes - done : kMostBytes;
        const Entry entry = transfer_entry(op, peer_number, there + done, local_number, here + done, some);
        status = post(queue, peer, &entry, 1).status;
        done += some;
    } while (done < nbytes && status == kOk);
    return status;
}

// Sets a word, or adds to it, after all that was posted before.
ZEROHOP_OUT_OF_LINE Word signal(const Queue* queue, Word peer_number, Word offset, Word value, bool add) {
    const Entry entry = value_entry(add ? Op::add : Op::set, peer_number, offset, value);
    return post(queue, peer_of(queue, peer_number), &entry, 1).status;
}

// Has nothing later begin before all that was posted before has ended. It is inlined: a call would take as long.
ZEROHOP_DEVICE_FN Word fence(const Queue* queue, Word peer_number, const Peer& peer) {
    const Entry entry = value_entry(Op::fence, peer_number, 0, 0);
    return post(queue, peer, &entry, 1).status;
}

// Adds, or sets the word if it is `expected`, and waits for the value from before.
ZEROHOP_OUT_OF_LINE Found atomic(const Queue* queue, Op op, Word peer_number, Word offset, Word operand,
                                 Word expected) {
    const Peer peer = peer_of(queue, peer_number);
    const Entry entries[2] = {value_entry(op == Op::compare_swap ? Op::compare : op, peer_number, offset,
                                          op == Op::compare_swap ? expected : operand),
                              value_entry(op, peer_number, offset, operand)};
    return result(queue, peer, post(queue, peer, entries, op == Op::compare_swap ? 2 : 1));
}

} // namespace fifo

} // namespace detail

} // namespace zerohop::device
