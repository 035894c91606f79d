"""Signals the arrival of bytes by 8-byte words, waits for them, and does atomics on such words."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.posting import ADD, FETCH_ADD, SET, post_pair, post_value, result
from zerohop.device.triton.transfers import put
from zerohop.device.triton.words import (
    OK,
    PEER,
    READ,
    WRITE,
    as_word,
    fits,
    is_local,
    is_peer,
    is_word,
    local_of,
    peer_of,
    read,
    refuse,
    wait_for,
    word,
)


@triton.jit
def signal(queue, peer, offset, value, add: tl.constexpr = False):
    """Set a peer's 8-byte word to ``value``, or add it, after all that this program has put there before is there."""
    status = as_word(OK)
    peer_at = peer_of(queue, peer)
    rights: tl.constexpr = READ | WRITE if add else WRITE
    if not is_word(queue, peer, offset, rights):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        at = word(read(peer_at, 1) + offset, 0)
        tl.debug_barrier()
        if add:
            tl.atomic_add(at, as_word(value), sem="release", scope="sys")
        else:
            tl.atomic_xchg(at, as_word(value), sem="release", scope="sys")
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
def wait_signal(queue, local, offset, value, peer=-1):
    """Wait until the 8-byte word at ``offset`` of a local is ``value`` or more, as signed numbers.

    What was put before the signal is there then. The wait ends with the Queue's ``timeout``, and with the loss of
    ``peer``; -1: of none.
    """
    status = as_word(OK)
    local_at = local_of(queue, local)
    at = read(local_at, 0) + offset
    inside = is_local(queue, local) & fits(offset, 8, read(local_at, 1)) & (at % 8 == 0)
    if (not inside) | ((peer != -1) & (not is_peer(queue, peer))):
        status = refuse(queue, -1)
    else:
        status = wait_for(queue, peer, at, value, read(local_at, 3))
    return status


@triton.jit
def fetch_add(queue, peer, offset, value):
    """Add to a peer's 8-byte word; return the status, and the value from before."""
    status = as_word(OK)
    old = as_word(0)
    peer_at = peer_of(queue, peer)
    if not is_word(queue, peer, offset, READ | WRITE):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        tl.debug_barrier()
        old = tl.atomic_add(word(read(peer_at, 1) + offset, 0), as_word(value), sem="acq_rel", scope="sys")
    else:
        status, index = post_value(queue, peer, FETCH_ADD, offset, value)
        if status == OK:
            status, old = result(queue, peer, index)
    return status, old


@triton.jit
def compare_swap(queue, peer, offset, expected, desired):
    """Set a peer's 8-byte word to ``desired`` if it is ``expected``; return the status, and the value from before."""
    status = as_word(OK)
    old = as_word(0)
    peer_at = peer_of(queue, peer)
    wanted = as_word(expected)
    new = as_word(desired)
    if not is_word(queue, peer, offset, READ | WRITE):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        tl.debug_barrier()
        old = tl.atomic_cas(word(read(peer_at, 1) + offset, 0), wanted, new, sem="acq_rel", scope="sys")
    else:
        status, index = post_pair(queue, peer, offset, wanted, new)
        if status == OK:
            status, old = result(queue, peer, index)
    return status, old
