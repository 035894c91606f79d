"""Posts entries to the FIFO of a Queue, which the host takes out."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.fields import PEER_COUNT, POLLED, POSTED, RESULTS, SLOTS, STATE, TAKEN, TIMEOUT_NS
from zerohop.device.triton.waits import begin_count, wait_for, wait_for_count
from zerohop.device.triton.words import (
    FAILED,
    OK,
    TIMED_OUT,
    agreed,
    as_word,
    fail_peers,
    fifo_of,
    look,
    peer_of,
    read,
    word,
)

PUT = tl.constexpr(1)
GET = tl.constexpr(2)
SET = tl.constexpr(3)
ADD = tl.constexpr(4)
FETCH_ADD = tl.constexpr(5)
COMPARE = tl.constexpr(6)
COMPARE_SWAP = tl.constexpr(7)
FENCE = tl.constexpr(8)

MOST_BYTES = tl.constexpr(1 << 23)  # of one entry
_LAP = tl.constexpr(-(1 << 63))
_VALUE = tl.constexpr((1 << 63) - 1)


@triton.jit
def _wait_for_room(queue, copy_at, index, slots, taken):
    """Wait until the slot of an entry is free, as long as the host takes entries.

    ``taken``: how many it has taken, from an earlier look of each thread.
    """
    status = as_word(OK)
    if agreed((index - (taken & ~POLLED) >= slots).to(tl.int32)) != 0:
        host, timeout_ns, begun = read(queue, TAKEN), read(queue, TIMEOUT_NS), begin_count(copy_at)
        status, _ = wait_for_count(queue, -1, host, copy_at, begun, index - slots + 1, timeout_ns, True)
        if status == TIMED_OUT:
            # The index that this entry has taken is never written, and the host cannot pass it: the Queue ends.
            tl.store(word(read(queue, STATE), 0), status)
            fail_peers(queue, as_word(0), read(queue, PEER_COUNT))
    return status


@triton.jit
def _write_entry(fifo, index, slots, first, second):
    # Plain stores will do, as GPUs write words of 64 bits at once: `_claim` has ordered them behind all that the
    # program has done, and the highest bit of each word tells whether it has arrived.
    lap = as_word(0)
    if (index & slots) == 0:
        lap = as_word(_LAP)
    at = fifo + (index & (slots - 1)) * 16
    which = tl.arange(0, 2)  # one write over PCIe
    tl.store(word(at, which), tl.where(which == 0, first, second) | lap)


@triton.jit
def _claim(queue, slots, head_at, copy_at, count: tl.constexpr):
    """Take slots for entries, after everything that the program has done; `_note` comes when they are written.

    Returns:
        the status, and the last index.
    """
    tl.debug_barrier()
    # The host sees the entry after the bytes that it tells of. The look is under way together with the index, whose
    # atomic orders it before the stores to the slot.
    taken = look(copy_at)
    index = tl.atomic_add(word(head_at, 0), count, sem="acq_rel", scope="sys") + (count - 1)
    status = _wait_for_room(queue, copy_at, index, slots, taken)
    return status, index


@triton.jit
def _note(posted, index):
    """Have `flush` wait for an entry of a peer, and for all before it."""
    # Numbers without a sign: FAILURE, the highest bit, stays.
    tl.atomic_max(posted.to(tl.pointer_type(tl.uint64)), (index + 1).to(tl.uint64), sem="relaxed", scope="gpu")


@triton.jit
def post_at(queue, fifo, slots, head_at, copy_at, posted, first, second):
    """Post one entry, with what `fifo_of` gives; ``posted``: where the peer's entries are counted. Return as `post`."""
    status, index = _claim(queue, slots, head_at, copy_at, 1)
    if status == OK:
        _write_entry(fifo, index, slots, first, second)
    _note(posted, index)
    return status, index


@triton.jit
def post(queue, peer_at, first, second):
    """Post one entry; return the status and its index."""
    fifo, slots, head_at, copy_at = fifo_of(queue)
    return post_at(queue, fifo, slots, head_at, copy_at, read(peer_at, POSTED), first, second)


@triton.jit
def head(op: tl.constexpr, peer, offset):
    """Return the first word of an entry, as far as all entries have the same."""
    return as_word(op) << 59 | as_word(peer) << 50 | as_word(offset) << 10


@triton.jit
def post_value(queue, peer, op: tl.constexpr, offset, value):
    """Post an entry with a value; return the status and its index."""
    wide = as_word(value)
    first = head(op, peer, offset) | ((wide >> 63) & 1)
    return post(queue, peer_of(queue, peer), first, wide & _VALUE)


@triton.jit
def post_pair(queue, peer, offset, wanted, new):
    """Post both entries of a compare_swap, one behind the other; return the status and the index of the second."""
    fifo, slots, head_at, copy_at = fifo_of(queue)
    status, index = _claim(queue, slots, head_at, copy_at, 2)
    if status == OK:
        first = head(COMPARE, peer, offset) | ((wanted >> 63) & 1)
        _write_entry(fifo, index - 1, slots, first, wanted & _VALUE)
        second = head(COMPARE_SWAP, peer, offset) | ((new >> 63) & 1)
        _write_entry(fifo, index, slots, second, new & _VALUE)
    _note(read(peer_of(queue, peer), POSTED), index)
    return status, index


@triton.jit
def result(queue, peer, index):
    """Wait for what an atomic has found; return the status and the value."""
    at = read(queue, RESULTS) + (index & (read(queue, SLOTS) - 1)) * 16
    status = wait_for(queue, peer, at + 8, index + 1, 1)
    old = as_word(0)
    if status == OK:
        if agreed((look(at + 8) == index + 1).to(tl.int32)) != 0:
            # Until it is read the host puts no other result there.
            old = look(at)
            tl.debug_barrier()
            tl.store(word(at, 1), 0)
        else:
            status = as_word(FAILED)  # the result was there for longer than the timeout
    return status, old
