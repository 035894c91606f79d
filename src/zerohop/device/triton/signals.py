"""Signals the arrival of bytes by 8-byte words, waits for them, and does atomics on such words."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.pairs import atomic_by_nic, signal_by_nic
from zerohop.device.triton.posting import ADD, FETCH_ADD, PUT, SET, post_pair, post_value, result
from zerohop.device.triton.transfers import is_transfer, transfer
from zerohop.device.triton.waits import wait_for
from zerohop.device.triton.words import (
    MLX5,
    OK,
    PEER,
    READ,
    WRITE,
    as_word,
    fits,
    is_peer,
    is_word,
    local_entry,
    peer_entry,
    refuse,
    word,
)
from zerohop.device.triton.work_queue import COMPARE_SWAP_OF, FETCH_ADD_OF


@triton.jit
def _send(queue, peer, mode, base, offset, value, add: tl.constexpr):
    """Signal in a word that `is_word` has allowed; ``mode`` and ``base``: of the peer's entry."""
    status = as_word(OK)
    if mode == PEER:
        at = word(base + offset, 0)
        tl.debug_barrier()
        if add:
            tl.atomic_add(at, as_word(value), sem="release", scope="sys")
        else:
            tl.atomic_xchg(at, as_word(value), sem="release", scope="sys")
    elif mode == MLX5:
        status = signal_by_nic(queue, peer, base, offset, value, add)
    elif add:
        status, _ = post_value(queue, peer, ADD, offset, value)
    else:
        status, _ = post_value(queue, peer, SET, offset, value)
    return status


@triton.jit
def signal(queue, peer, offset, value, add: tl.constexpr = False, status=0):
    """Set a peer's 8-byte word to ``value``, or add it, after all that this program has put there before is there."""
    wanted: tl.constexpr = READ | WRITE if add else WRITE
    mode, base, nbytes, rights = peer_entry(queue, peer)
    found = as_word(status)
    if found == OK:
        if is_word(base, nbytes, rights, offset, wanted):
            found = _send(queue, peer, mode, base, offset, value, add)
        else:
            found = refuse(queue, peer)
    return found


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
    status=0,
):
    """Put, and then `signal` at ``signal_offset`` of the same peer's memory. Both are refused, or none."""
    there, here, length = as_word(dst_offset), as_word(src_offset), as_word(nbytes)
    wanted: tl.constexpr = READ | WRITE if add else WRITE
    mode, base, peer_nbytes, rights = peer_entry(queue, peer)
    local_base, local_nbytes, local_rights, _ = local_entry(queue, local)
    found = as_word(status)
    may = is_transfer(PUT, there, peer_nbytes, rights, here, local_nbytes, local_rights, length)
    if found == OK:
        if may & is_word(base, peer_nbytes, rights, signal_offset, wanted):
            found = transfer(queue, peer, mode, base, PUT, there, local, local_base, here, length, block)
            if found == OK:
                found = _send(queue, peer, mode, base, signal_offset, value, add)
        else:
            found = refuse(queue, peer)
    return found


@triton.jit
def wait_signal(queue, local, offset, value, peer=-1, status=0):
    """Wait until the 8-byte word at ``offset`` of a local is ``value`` or more, as signed numbers.

    What was put before the signal is there then. The wait ends with the Queue's ``timeout``, and with the loss of
    ``peer``; -1: of none.
    """
    found = as_word(status)
    base, nbytes, rights, on_host = local_entry(queue, local)
    at = base + offset
    inside = fits(offset, 8, nbytes) & (at % 8 == 0) & (rights != 0)
    number = as_word(peer)
    if found == OK:
        if (not inside) | ((number != -1) & (not is_peer(queue, number))):
            found = refuse(queue, -1)
        else:
            found = wait_for(queue, number, at, value, on_host)
    return found


@triton.jit
def fetch_add(queue, peer, offset, value, status=0):
    """Add to a peer's 8-byte word; return the status, and the value from before."""
    found = as_word(status)
    old = as_word(0)
    mode, base, nbytes, rights = peer_entry(queue, peer)
    if found != OK:
        tl.debug_barrier()
    elif not is_word(base, nbytes, rights, offset, READ | WRITE):
        found = refuse(queue, peer)
    elif mode == PEER:
        tl.debug_barrier()
        old = tl.atomic_add(word(base + offset, 0), as_word(value), sem="acq_rel", scope="sys")
    elif mode == MLX5:
        found, old = atomic_by_nic(queue, peer, base, FETCH_ADD_OF, offset, as_word(value), as_word(0))
    else:
        found, index = post_value(queue, peer, FETCH_ADD, offset, value)
        if found == OK:
            found, old = result(queue, peer, index)
    return found, old


@triton.jit
def compare_swap(queue, peer, offset, expected, desired, status=0):
    """Set a peer's 8-byte word to ``desired`` if it is ``expected``; return the status, and the value from before."""
    found = as_word(status)
    old = as_word(0)
    mode, base, nbytes, rights = peer_entry(queue, peer)
    wanted = as_word(expected)
    new = as_word(desired)
    if found != OK:
        tl.debug_barrier()
    elif not is_word(base, nbytes, rights, offset, READ | WRITE):
        found = refuse(queue, peer)
    elif mode == PEER:
        tl.debug_barrier()
        old = tl.atomic_cas(word(base + offset, 0), wanted, new, sem="acq_rel", scope="sys")
    elif mode == MLX5:
        found, old = atomic_by_nic(queue, peer, base, COMPARE_SWAP_OF, offset, new, wanted)
    else:
        found, index = post_pair(queue, peer, offset, wanted, new)
        if found == OK:
            found, old = result(queue, peer, index)
    return found, old
