"""Signals the arrival of bytes by 8-byte words, waits for them, and does atomics on such words."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.posting import ADD, FETCH_ADD, SET, post_pair, post_value, result
from zerohop.device.triton.transfers import put
from zerohop.device.triton.words import (
    FAILED,
    OK,
    PEER,
    TIMED_OUT,
    fits,
    is_local,
    is_word,
    local_of,
    look,
    now,
    peer_of,
    read,
    refuse,
    state_of,
    word,
)

# Spins between two looks at words of the host, which take longer than a look at the GPU's own memory.
_SPINS = tl.constexpr(64)


@triton.jit
def signal(queue, peer, offset, value, add: tl.constexpr = False):
    """Set a peer's 8-byte word to ``value``, or add it, after all that this program has put there before is there."""
    status = tl.full((), OK, tl.int64)
    peer_at = peer_of(queue, peer)
    if not is_word(queue, peer, offset):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        at = word(read(peer_at, 1) + offset, 0)
        tl.debug_barrier()
        if add:
            tl.atomic_add(at, value, sem="release", scope="sys")
        else:
            tl.atomic_xchg(at, value, sem="release", scope="sys")
    elif add:
        status, _ = post_value(queue, peer, ADD, offset, value)
    else:
        status, _ = post_value(queue, peer, SET, offset, value)
    return status


@triton.jit
def put_signal(
    queue,
    peer,
    dst_offset,
    local,
    src_offset,
    nbytes,
    signal_offset,
    value,
    add: tl.constexpr = False,
    block: tl.constexpr = 1024,
):
    """Put, and then `signal` at ``signal_offset`` of the same peer's memory."""
    status = put(queue, peer, dst_offset, local, src_offset, nbytes, block)
    if status == OK:
        status = signal(queue, peer, signal_offset, value, add)
    return status


@triton.jit
def _signal_at(at, on_host):
    # Atomics of a GPU on memory of the host may not be atomic for the host.
    seen = tl.full((), 0, tl.int64)
    if on_host == 0:
        seen = tl.atomic_add(word(at, 0), 0, sem="acquire", scope="sys")
    else:
        seen = look(at)
    return seen


@triton.jit
def wait_signal(queue, local, offset, value, peer=-1):
    """Wait until the 8-byte word at ``offset`` of a local is ``value`` or more; what was put before it is there then.

    The wait ends with the Queue's ``timeout``, and with the loss of ``peer``; a negative one: of none.
    """
    status = tl.full((), OK, tl.int64)
    local_at = local_of(queue, local)
    inside = is_local(queue, local) & fits(offset, 8, read(local_at, 1)) & (offset % 8 == 0)
    if not inside:
        status = tl.full((), FAILED, tl.int64)
    else:
        at = read(local_at, 0) + offset
        on_host = read(local_at, 3)
        until = now() + read(queue, 12)
        seen = _signal_at(at, on_host)
        spins = tl.full((), 0, tl.int32)
        while (seen < value) & (status == OK):
            spins += 1
            if spins % _SPINS == 0:
                status = state_of(queue, peer)
            if (status == OK) & (now() > until):
                status = tl.full((), TIMED_OUT, tl.int64)
            seen = _signal_at(at, on_host)
        if seen >= value:
            status = tl.full((), OK, tl.int64)
        if on_host != 0:
            tl.atomic_add(word(read(queue, 9), 0), 0, sem="acq_rel", scope="sys")
        tl.debug_barrier()
    return status


@triton.jit
def fetch_add(queue, peer, offset, value):
    """Add to a peer's 8-byte word; return the status, and the value from before."""
    status = tl.full((), OK, tl.int64)
    old = tl.full((), 0, tl.int64)
    peer_at = peer_of(queue, peer)
    if not is_word(queue, peer, offset):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        tl.debug_barrier()
        old = tl.atomic_add(word(read(peer_at, 1) + offset, 0), value, sem="acq_rel", scope="sys")
    else:
        status, index = post_value(queue, peer, FETCH_ADD, offset, value)
        if status == OK:
            status, old = result(queue, peer, index)
    return status, old


@triton.jit
def compare_swap(queue, peer, offset, expected, desired):
    """Set a peer's 8-byte word to ``desired`` if it is ``expected``; return the status, and the value from before."""
    status = tl.full((), OK, tl.int64)
    old = tl.full((), 0, tl.int64)
    peer_at = peer_of(queue, peer)
    wanted = tl.full((), 0, tl.int64) + expected
    new = tl.full((), 0, tl.int64) + desired
    if not is_word(queue, peer, offset):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        tl.debug_barrier()
        old = tl.atomic_cas(word(read(peer_at, 1) + offset, 0), wanted, new, sem="acq_rel", scope="sys")
    else:
        status, index = post_pair(queue, peer, peer_at, offset, wanted, new)
        if status == OK:
            status, old = result(queue, peer, index)
    return status, old
