"""Posts requests in the form of mlx5 NICs, and waits for them, as `zerohop/device/work_queue.hpp` does.

One program posts for itself, and all programs share a queue. Not verified on hardware.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.words import (
    CLOSED,
    FAILED,
    OK,
    TIMED_OUT,
    agreed,
    as_word,
    load_near,
    look,
    look_together,
    now,
    word,
)

# Words of a WorkQueue. Those from BLOCKS on, but for the two counts and the time, are addresses.
_LAYOUT = tl.constexpr(0)
_NUMBER = tl.constexpr(1)
_SLOTS = tl.constexpr(2)
_BLOCKS = tl.constexpr(3)
_RECORD = tl.constexpr(4)
_DOORBELL = tl.constexpr(5)
_COMPLETIONS = tl.constexpr(6)
_COMPLETION_SLOTS = tl.constexpr(7)
_COMPLETION_RECORD = tl.constexpr(8)
_HEAD = tl.constexpr(9)
_TURN = tl.constexpr(10)
_DONE = tl.constexpr(11)
_STATE = tl.constexpr(12)
_TIMEOUT_NS = tl.constexpr(13)
_MOST = tl.constexpr(14)
_QUEUE_LAYOUT = tl.constexpr(0x7A686D6C78350003)

# Opcodes of requests, and their flags: the NIC writes a completion; and begins behind the reads and atomics before.
WRITE_OF = tl.constexpr(0x08)
READ_OF = tl.constexpr(0x10)
COMPARE_SWAP_OF = tl.constexpr(0x11)
FETCH_ADD_OF = tl.constexpr(0x12)
ALWAYS = tl.constexpr(0x08)
ALWAYS_FENCED = tl.constexpr(0x88)

_BLOCK_BYTES = tl.constexpr(64)
_COMPLETED_BYTES = tl.constexpr(64)
_LAST_WORD = tl.constexpr(56)  # of a completion: the one that has counter and owner
_ENDED = tl.constexpr(0)  # codes of completions
_INVALID = tl.constexpr(15)
_HALF = tl.constexpr(0xFFFFFFFF)
_SPINS = tl.constexpr(64)  # looks between two at the clock and at the state


@triton.jit
def big_half(value):
    """Return the lower 32 bits with their bytes in the order of the network."""
    low = ((value & 0xFF) << 24) | ((value & 0xFF00) << 8)
    return low | ((value >> 8) & 0xFF00) | ((value >> 24) & 0xFF)


@triton.jit
def big(value):
    """Return a word with its bytes in the order of the network."""
    return (big_half(value) << 32) | big_half((value >> 32) & _HALF)


@triton.jit
def halves(first, second):
    """Return the word of two halves, in their order in memory."""
    return (first & _HALF) | (second << 32)


@triton.jit
def _read(work, index):
    # Not as a word that nobody changes: the host clears the layout when the queue is closed.
    return look(work + index * 8)


@triton.jit
def _order(work):
    """Order all that the program has done before its next store, for the system."""
    tl.debug_barrier()
    tl.atomic_add(word(_read(work, _HEAD), 0), 0, sem="acq_rel", scope="sys")


@triton.jit
def _give_up(work, status):
    """End the queue for all, unless it has ended; return with which status it has."""
    before = tl.atomic_cas(word(_read(work, _STATE), 0), as_word(OK), status, sem="acq_rel", scope="sys")
    return tl.where(before == OK, status, before)


@triton.jit
def state_by(work, until):
    """Return the state of the queue, or TIMED_OUT if that is OK and the time ``until``, of `now`, has passed."""
    state = look(_read(work, _STATE)).to(tl.int32)
    late = (now() > until).to(tl.int32) * TIMED_OUT
    return as_word(agreed(tl.where(state == OK, late, state)))


@triton.jit
def deadline_of(work):
    """Return the time, of `now`, at which a wait that begins now ends."""
    return now() + _read(work, _TIMEOUT_NS)


@triton.jit
def _take(work):
    """Take the next completion from the ring if it is there; return the status: it may be an error's."""
    status = as_word(OK)
    done = load_near(_read(work, _DONE))
    slots = _read(work, _COMPLETION_SLOTS)
    last = look_together(_read(work, _COMPLETIONS) + (done & (slots - 1)) * _COMPLETED_BYTES + _LAST_WORD)
    code = (last >> 60) & 0xF
    lap = ((done & slots) != 0).to(tl.int64)
    if (code != _INVALID) & (((last >> 56) & 1) == lap):
        if code == _ENDED:
            tl.atomic_max(word(_read(work, _DONE), 0), done + 1, sem="acq_rel", scope="gpu")
        else:
            status = _give_up(work, as_word(FAILED))
    return status


@triton.jit
def wait_until_done(work, index):
    """Wait until a request has completed, with all before it; return the status."""
    status = as_word(OK)
    until = deadline_of(work)
    done = load_near(_read(work, _DONE))
    spins = tl.full((), 0, tl.int32)
    while (done <= index) & (status == OK):
        status = _take(work)
        done = load_near(_read(work, _DONE))
        spins += 1
        if (spins % _SPINS == 0) & (status == OK):
            status = state_by(work, until)
            done = load_near(_read(work, _DONE))
    if done > index:
        status = as_word(OK)
    tl.debug_barrier()
    return status


@triton.jit
def _record_completions(work):
    """Tell the NIC how many completions were taken."""
    done = load_near(_read(work, _DONE))
    seen = done - 1
    while seen != done:  # again if completions were taken meanwhile
        seen = done
        record = _read(work, _COMPLETION_RECORD).to(tl.pointer_type(tl.int32))
        tl.store(record, big_half(seen & 0xFFFFFF).to(tl.int32))
        _order(work)
        done = load_near(_read(work, _DONE))


@triton.jit
def _ring(work, first):
    """Tell the NIC of the requests before an index, and of all that become ready meanwhile."""
    end = first
    while end != 0:
        _order(work)  # the NIC sees the requests after the bytes that they send, and the record after the requests
        record = (_read(work, _RECORD) + 4).to(tl.pointer_type(tl.int32))
        tl.store(record, big_half(end & 0xFFFF).to(tl.int32))
        _order(work)  # the doorbell comes after the record
        last = halves(big_half(((end - 1) & 0xFFFF) << 8 | WRITE_OF), big_half(_read(work, _NUMBER) << 8 | 3))
        tl.store(word(_read(work, _DOORBELL), 0), last)
        rung = end * 2
        found = tl.atomic_cas(word(_read(work, _TURN), 0), rung | 1, rung, sem="acq_rel", scope="gpu")
        end = tl.where(found == (rung | 1), as_word(0), found >> 1)


@triton.jit
def _hand_over(work, index):
    """Wait until all requests before are ready, and make this one ready; ring the doorbell if no other program does."""
    status = as_word(OK)
    until = deadline_of(work)
    turn = word(_read(work, _TURN), 0)
    handed = tl.full((), 0, tl.int32)
    rings = as_word(0)
    spins = tl.full((), 0, tl.int32)
    while (handed == 0) & (status == OK):
        found = load_near(_read(work, _TURN))
        if (found >> 1) == index:
            before = tl.atomic_cas(turn, found, ((index + 1) * 2) | 1, sem="acq_rel", scope="gpu")
            handed = (before == found).to(tl.int32)
            rings = tl.where((before == found) & (found == index * 2), index + 1, rings)
        spins += 1
        if (spins % _SPINS == 0) & (handed == 0):
            status = state_by(work, until)
    if status != OK:
        status = _give_up(work, status)
    if rings != 0:
        _ring(work, rings)
    return status


@triton.jit
def post(work, posted_at, opcode, segments, flags, remote, remote_key, w4, w5, w6, w7):
    """Post one request; return the status and its index. ``w4`` to ``w7`` are its words behind the remote address.

    ``posted_at``: address of the peer's counter. Nothing is posted where it says that a call was refused.
    """
    status = as_word(OK)
    index = as_word(0)
    if agreed((look(work + _LAYOUT * 8) != _QUEUE_LAYOUT).to(tl.int32)) != 0:
        status = as_word(CLOSED)
    elif load_near(posted_at) < 0:
        status = as_word(FAILED)
    else:
        most = _read(work, _MOST)
        tl.debug_barrier()
        index = tl.atomic_add(word(_read(work, _HEAD), 0), 1, sem="relaxed", scope="gpu")
        if index - load_near(_read(work, _DONE)) >= most:
            status = wait_until_done(work, index - most)
        if status != OK:
            status = _give_up(work, status)  # others wait for this request to be ready, and it never is
        else:
            if ((index ^ (index + 1)) & -((most + 1) // 2)) != 0:  # `most` is a power of two
                _record_completions(work)  # a NIC ends a queue pair whose completions are all taken, by the record
            w0 = halves(big_half((index & 0xFFFF) << 8 | opcode), big_half(_read(work, _NUMBER) << 8 | segments))
            w1 = as_word(flags) << 24
            w3 = big_half(remote_key)
            at = _read(work, _BLOCKS) + (index & (_read(work, _SLOTS) - 1)) * _BLOCK_BYTES
            which = tl.arange(0, 8)
            first = tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, big(remote), w3)))
            rest = tl.where(which == 4, w4, tl.where(which == 5, w5, tl.where(which == 6, w6, w7)))
            tl.store(word(at, which), tl.where(which < 4, first, rest))
            tl.debug_barrier()
            status = _hand_over(work, index)
    return status, index
