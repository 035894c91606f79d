"""Declares the Triton kernels of the rows about kernels that send: through a Queue, and as floors by plain addresses.

Each kernel writes a status, 0 if all went well, and two times of the GPU's clock in nanoseconds to ``out``.
"""

from __future__ import annotations

import triton
import triton.language as tl

import zerohop.device.triton as zd
from zerohop.device.triton.transfers import copy
from zerohop.device.triton.words import local_entry, now, peer_entry, word

# How a ping-pong is made: by the Queue's functions; by these, but with a wait that has no time; by addresses alone.
QUEUE = tl.constexpr(0)
UNTIMED = tl.constexpr(1)
PLAIN = tl.constexpr(2)
_PAYLOAD_AT = tl.constexpr(4096)  # in an inbox, behind its signal
_SPINS = tl.constexpr(1 << 26)  # a wait without a time ends, too


@triton.jit
def _spin(at, value):
    """Wait for a signal as the floor does."""
    spins = tl.full((), 0, tl.int32)
    while (tl.atomic_add(word(at, 0), 0, sem="acquire", scope="sys") < value) & (spins < _SPINS):
        spins += 1
    tl.debug_barrier()
    return (spins >= _SPINS).to(tl.int64)


@triton.jit
def _wait(queue, inbox, value, how: tl.constexpr):
    if how == QUEUE:
        status = zd.wait_signal(queue, 1, 0, value, 0)
    else:
        status = _spin(inbox, value)
    return status


@triton.jit
def ping(queue, out, first, base, rounds, nbytes, how: tl.constexpr, block: tl.constexpr):
    """Send all of local 0 to peer 0 in each round, and wait for the same from there."""
    base = base.to(tl.int64)
    _, target, _, _ = peer_entry(queue, 0)
    source, _, _, _ = local_entry(queue, 0)
    inbox, _, _, _ = local_entry(queue, 1)
    status = tl.full((), 0, tl.int64)
    turn = tl.full((), 0, tl.int64)
    begun = now()
    while (turn < rounds) & (status == 0):
        turn += 1
        if turn == rounds // 8:
            begun = now()
        if first == 0:
            status = _wait(queue, inbox, base + turn, how)
        if how != PLAIN:
            status = zd.put_signal(queue, 0, _PAYLOAD_AT, 0, 0, nbytes, 0, base + turn, block=block, status=status)
        elif status == 0:
            copy(target + _PAYLOAD_AT, source, nbytes, block)
            tl.debug_barrier()
            tl.atomic_xchg(word(target, 0), base + turn, sem="release", scope="sys")
        if (first != 0) & (status == 0):
            status = _wait(queue, inbox, base + turn, how)
    at = out.to(tl.pointer_type(tl.int64))
    tl.store(at, status)
    tl.store(at + 1, begun)
    tl.store(at + 2, now())


@triton.jit
def put(queue, out, nbytes, rounds, how: tl.constexpr, block: tl.constexpr):
    """Put a part of local 0 to peer 0 as often as `rounds` says; each program has a part."""
    _, target, _, _ = peer_entry(queue, 0)
    source, _, _, _ = local_entry(queue, 0)
    share = (nbytes // tl.num_programs(0) // 16 * 16).to(tl.int64)
    begin = tl.program_id(0) * share
    if tl.program_id(0) == tl.num_programs(0) - 1:
        share = nbytes - begin  # the last one takes the rest, too
    status = tl.full((), 0, tl.int64)
    turn = tl.full((), 0, tl.int64)
    while (turn < rounds) & (status == 0):
        turn += 1
        if how == PLAIN:
            copy(target + _PAYLOAD_AT + begin, source + begin, share, block)
        else:
            status = zd.put(queue, 0, _PAYLOAD_AT + begin, 0, begin, share, block=block)
    if (how != PLAIN) & (status == 0):
        status = zd.flush(queue, 0)
    if status != 0:
        tl.store(out.to(tl.pointer_type(tl.int64)), status)


@triton.jit
def post(queue, out, count, nbytes):
    """Post `count` entries of each program: puts of `nbytes` to places of their own; 0: fences."""
    status = tl.full((), 0, tl.int64)
    done = tl.full((), 0, tl.int64)
    while (done < count) & (status == 0):
        at = (tl.program_id(0) * count + done) * nbytes
        if nbytes == 0:
            status = zd.fence(queue, 0)
        else:
            status = zd.put(queue, 0, _PAYLOAD_AT + at, 0, at, nbytes)
        done += 1
    if status == 0:
        status = zd.flush(queue, 0)
    if status != 0:
        tl.store(out.to(tl.pointer_type(tl.int64)), status)


@triton.jit
def turns(queue, out, rounds, how: tl.constexpr):
    """Ask the host for something in each round, and wait for its answer: a fence, or a word that it echoes."""
    asked, _, _, _ = local_entry(queue, 0)
    answered, _, _, _ = local_entry(queue, 1)
    status = tl.full((), 0, tl.int64)
    turn = tl.full((), 0, tl.int64)
    begun = now()
    while (turn < rounds) & (status == 0):
        turn += 1
        if turn == rounds // 8:
            begun = now()
        if how == PLAIN:
            tl.store(word(asked, 0), turn)
            spins = tl.full((), 0, tl.int32)
            while (tl.load(word(answered, 0), volatile=True) < turn) & (spins < _SPINS):
                spins += 1
            status = (spins >= _SPINS).to(tl.int64)
        else:
            status = zd.fence(queue, 0)
            status = zd.flush(queue, 0, status=status)
    at = out.to(tl.pointer_type(tl.int64))
    tl.store(at, status)
    tl.store(at + 1, begun)
    tl.store(at + 2, now())
