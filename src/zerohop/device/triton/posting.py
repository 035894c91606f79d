"""Posts entries to the FIFO of a Queue, which the host takes out."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.words import FAILED, OK, TIMED_OUT, look, now, peer_of, read, state_of, word

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
def _wait_for_room(queue, index, slots):
    """Wait until the slot of an entry is free."""
    status = tl.full((), OK, tl.int64)
    seen_at = word(read(queue, 9), 0)
    if index - tl.load(seen_at, volatile=True) >= slots:
        taken_at = read(queue, 10)
        until = now() + read(queue, 12)
        taken = look(taken_at)
        while (index - taken >= slots) & (status == OK):
            status = state_of(queue, -1)
            if (status == OK) & (now() > until):
                # The entry has its index by now, and nobody writes it: the FIFO ends here, for all.
                tl.atomic_xchg(word(read(queue, 11), 0), TIMED_OUT, sem="relaxed", scope="sys")
                status = tl.full((), TIMED_OUT, tl.int64)
            taken = look(taken_at)
        tl.store(seen_at, taken)
    return status


@triton.jit
def _write_entry(queue, index, slots, first, second):
    lap = tl.full((), 0, tl.int64)
    if (index & slots) == 0:
        lap = tl.full((), _LAP, tl.int64)
    at = read(queue, 6) + (index & (slots - 1)) * 16
    tl.store(word(at, 0), first | lap)
    tl.store(word(at, 1), second | lap)


@triton.jit
def post(queue, peer_at, first, second):
    """Post one entry, after everything that the program has done; return the status and its index."""
    tl.debug_barrier()
    tl.atomic_add(word(read(peer_at, 4), 0), 1, sem="acq_rel", scope="sys")
    slots = read(queue, 5)
    index = tl.atomic_add(word(read(queue, 8), 0), 1, sem="relaxed", scope="gpu")
    status = _wait_for_room(queue, index, slots)
    if status == OK:
        _write_entry(queue, index, slots, first, second)
    return status, index


@triton.jit
def head(op: tl.constexpr, peer, offset):
    """Return the first word of an entry, as far as all entries have the same."""
    base = tl.full((), op, tl.int64) << 59
    return base | (tl.full((), 0, tl.int64) + peer) << 50 | (tl.full((), 0, tl.int64) + offset) << 10


@triton.jit
def post_value(queue, peer, op: tl.constexpr, offset, value):
    """Post an entry with a value; return the status and its index."""
    wide = tl.full((), 0, tl.int64) + value
    first = head(op, peer, offset) | ((wide >> 63) & 1)
    return post(queue, peer_of(queue, peer), first, wide & _VALUE)


@triton.jit
def post_pair(queue, peer, peer_at, offset, wanted, new):
    """Post both entries of a compare_swap, one behind the other; return the status and the index of the second."""
    tl.debug_barrier()
    tl.atomic_add(word(read(peer_at, 4), 0), 2, sem="acq_rel", scope="sys")
    slots = read(queue, 5)
    index = tl.atomic_add(word(read(queue, 8), 0), 2, sem="relaxed", scope="gpu") + 1
    status = _wait_for_room(queue, index, slots)
    if status == OK:
        first = head(COMPARE, peer, offset) | ((wanted >> 63) & 1)
        _write_entry(queue, index - 1, slots, first, wanted & _VALUE)
        second = head(COMPARE_SWAP, peer, offset) | ((new >> 63) & 1)
        _write_entry(queue, index, slots, second, new & _VALUE)
    return status, index


@triton.jit
def result(queue, peer, index):
    """Wait for what an atomic has found; return the status and the value."""
    status = tl.full((), OK, tl.int64)
    at = read(queue, 7) + (index & (read(queue, 5) - 1)) * 16
    until = now() + read(queue, 12)
    number = look(at + 8)
    while (number <= index) & (status == OK):
        status = state_of(queue, peer)
        if (status == OK) & (now() > until):
            status = tl.full((), TIMED_OUT, tl.int64)
        number = look(at + 8)
    old = tl.full((), 0, tl.int64)
    if number == index + 1:
        # Until it is read the host puts no other result there.
        old = look(at)
        tl.debug_barrier()
        tl.store(word(at, 1), 0)
        status = tl.full((), OK, tl.int64)
    elif status == OK:
        status = tl.full((), FAILED, tl.int64)  # the result was there for longer than the timeout
    return status, old
