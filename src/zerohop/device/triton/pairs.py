"""Reaches a peer through a queue pair that only kernels post to, as `zerohop/device/pair.hpp` does.

Not verified on hardware.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.fields import ENDED, POSTED
from zerohop.device.triton.posting import GET
from zerohop.device.triton.words import OK, as_word, look, peer_of, read, word
from zerohop.device.triton.work_queue import (
    ALWAYS,
    ALWAYS_FENCED,
    FETCH_ADD_OF,
    READ_OF,
    WRITE_OF,
    big,
    big_half,
    deadline_of,
    halves,
    post,
    state_by,
    wait_until_done,
)

# Words of a Pair. QUEUE, UNREAD, FOUND, LOCK and LOCAL_KEYS are addresses.
_QUEUE = tl.constexpr(0)
_REMOTE_KEY = tl.constexpr(1)
_UNREAD = tl.constexpr(2)
_FOUND = tl.constexpr(3)
_SCRATCH_KEY = tl.constexpr(4)
_LOCK = tl.constexpr(5)
_LOCAL_KEYS = tl.constexpr(6)

_MOST_BYTES = tl.constexpr(1 << 30)  # of one request
_INLINE = tl.constexpr(1 << 31)  # marks a length: the bytes follow
_BASE = tl.constexpr(1)  # word of a peer's entry


@triton.jit
def _post(peer_at, opcode, segments, flags, remote, w4, w5, w6, w7):
    pair = read(peer_at, ENDED)
    key = read(pair, _REMOTE_KEY)
    return post(read(pair, _QUEUE), read(peer_at, POSTED), opcode, segments, flags, remote, key, w4, w5, w6, w7)


@triton.jit
def _post_transfer(peer_at, opcode, flags, remote, local_key, local, nbytes):
    data = halves(big_half(nbytes), big_half(local_key))
    return _post(peer_at, opcode, 3, flags, remote, data, big(local), as_word(0), as_word(0))


@triton.jit
def _post_read_back(peer_at, flags):
    """Post a read of one byte of the peer's memory. It completes only after all earlier writes are visible there."""
    pair = read(peer_at, ENDED)
    key, unread = read(pair, _SCRATCH_KEY), read(pair, _UNREAD)
    return _post_transfer(peer_at, READ_OF, flags, read(peer_at, _BASE), key, unread, as_word(1))


@triton.jit
def _post_atomic(peer_at, opcode, remote, operand, compare, local):
    length = halves(big_half(as_word(8)), big_half(read(read(peer_at, ENDED), _SCRATCH_KEY)))
    return _post(peer_at, opcode, 4, ALWAYS_FENCED, remote, big(operand), big(compare), length, big(local))


@triton.jit
def transfer_by_nic(queue, peer, base, op: tl.constexpr, there, local, local_base, here, nbytes):
    """Post a transfer that was found to be allowed; return the status."""
    peer_at = peer_of(queue, peer)
    key = read(read(read(peer_at, ENDED), _LOCAL_KEYS), as_word(local))
    opcode: tl.constexpr = READ_OF if op == GET else WRITE_OF
    status = as_word(OK)
    done = as_word(0)
    while (done < nbytes) & (status == OK):
        some = tl.minimum(nbytes - done, _MOST_BYTES)
        status, _ = _post_transfer(peer_at, opcode, ALWAYS, base + there + done, key, local_base + here + done, some)
        done += some
    return status


@triton.jit
def signal_by_nic(queue, peer, base, offset, value, add: tl.constexpr):
    """Set or add to a word behind all that was posted before; return the status."""
    peer_at = peer_of(queue, peer)
    wide = as_word(value)
    status, _ = _post_read_back(peer_at, ALWAYS)
    if status == OK:
        if add:
            unread = read(read(peer_at, ENDED), _UNREAD)
            status, _ = _post_atomic(peer_at, FETCH_ADD_OF, base + offset, wide, as_word(0), unread)
        else:
            data, rest = halves(big_half(as_word(8) | _INLINE), wide), (wide >> 32) & 0xFFFFFFFF
            zero = as_word(0)
            status, _ = _post(peer_at, WRITE_OF, 3, ALWAYS_FENCED, base + offset, data, rest, zero, zero)
    return status


@triton.jit
def fence_by_nic(queue, peer):
    """Have the NIC begin nothing more until all that was posted before can be seen; return the status."""
    peer_at = peer_of(queue, peer)
    status, _ = _post_read_back(peer_at, ALWAYS)
    if status == OK:
        status, _ = _post_read_back(peer_at, ALWAYS_FENCED)
    return status


@triton.jit
def flush_by_nic(queue, peer):
    """Wait until all that was posted before can be seen, and gets have arrived; return the status."""
    peer_at = peer_of(queue, peer)
    status, index = _post_read_back(peer_at, ALWAYS)
    if status == OK:
        status = wait_until_done(read(read(peer_at, ENDED), _QUEUE), index)
    return status


@triton.jit
def atomic_by_nic(queue, peer, base, opcode, offset, operand, compare):
    """Change a word after all earlier requests; return the status, and the value from before."""
    peer_at = peer_of(queue, peer)
    pair = read(peer_at, ENDED)
    work = read(pair, _QUEUE)
    lock = word(read(pair, _LOCK), 0)
    status = as_word(OK)
    old = as_word(0)
    until = deadline_of(work)
    taken = tl.atomic_cas(lock, as_word(0), as_word(1), sem="acq_rel", scope="gpu")
    while (taken != 0) & (status == OK):
        status = state_by(work, until)
        if status == OK:
            taken = tl.atomic_cas(lock, as_word(0), as_word(1), sem="acq_rel", scope="gpu")
    if taken == 0:
        status, _ = _post_read_back(peer_at, ALWAYS)
        if status == OK:
            status, index = _post_atomic(peer_at, opcode, base + offset, operand, compare, read(pair, _FOUND))
            if status == OK:
                status = wait_until_done(work, index)
            if status == OK:
                old = look(read(pair, _FOUND))
                tl.debug_barrier()
        # Also where the time is up. Requests end in their order, so the NIC writes the word for the last time when the
        # next holder's request has completed.
        tl.atomic_xchg(lock, as_word(0), sem="release", scope="gpu")
    return status, old
