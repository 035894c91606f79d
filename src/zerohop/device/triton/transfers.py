"""Moves bytes between a peer's memory and memory of this side."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.posting import FENCE, GET, MOST_BYTES, PUT, head, post, post_value
from zerohop.device.triton.words import (
    OK,
    PEER,
    READ,
    WRITE,
    as_word,
    fits,
    is_local,
    is_peer,
    local_of,
    order,
    peer_of,
    read,
    refuse,
    state_of,
    wait_for,
)


@triton.jit
def copy(target, source, nbytes, block: tl.constexpr):
    """Copy bytes between two addresses, which the GPU reaches both; by words where both are aligned to 16."""
    done = nbytes * 0
    if (target | source) % 16 == 0:
        to = tl.multiple_of(target, 16)
        of = tl.multiple_of(source, 16)
        words = nbytes // 8
        at = tl.arange(0, block)
        start = words * 0
        while start < words:
            mask = start + at < words
            value = tl.load((of + start * 8).to(tl.pointer_type(tl.int64)) + at, mask=mask, volatile=True)
            tl.store((to + start * 8).to(tl.pointer_type(tl.int64)) + at, value, mask=mask)
            start += block
        done = words * 8
    at = tl.arange(0, block)
    while done < nbytes:
        mask = done + at < nbytes
        value = tl.load((source + done).to(tl.pointer_type(tl.int8)) + at, mask=mask, volatile=True)
        tl.store((target + done).to(tl.pointer_type(tl.int8)) + at, value, mask=mask)
        done += block


@triton.jit
def _transfer(queue, peer, op: tl.constexpr, peer_offset, local, local_offset, nbytes, block: tl.constexpr):
    status = as_word(OK)
    peer_at = peer_of(queue, peer)
    local_at = local_of(queue, local)
    length = as_word(nbytes)
    there = as_word(peer_offset)
    here = as_word(local_offset)
    if op == GET:
        may = ((read(peer_at, 3) & READ) != 0) & ((read(local_at, 2) & WRITE) != 0)
    else:
        may = ((read(peer_at, 3) & WRITE) != 0) & ((read(local_at, 2) & READ) != 0)
    known = is_peer(queue, peer) & is_local(queue, local)
    if (
        (not known)
        | (not may)
        | (not fits(there, length, read(peer_at, 2)))
        | (not fits(here, length, read(local_at, 1)))
    ):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        # All threads' stores come before the copy, and no constant length leaves a loop that never runs: Triton's
        # compiler does not take that.
        tl.debug_barrier()
        length = tl.minimum(length, read(peer_at, 2))
        remote_at = read(peer_at, 1) + there
        mine = read(local_at, 0) + here
        if op == GET:
            copy(mine, remote_at, length, block)
        else:
            copy(remote_at, mine, length, block)
    else:
        done = as_word(0)
        begun = tl.full((), 0, tl.int32)
        while ((done < length) | (begun == 0)) & (status == OK):
            some = tl.minimum(length - done, MOST_BYTES)
            first = head(op, peer, there + done) | as_word(local) << 2 | (some & 3)
            status, _ = post(queue, peer_at, first, (here + done) << 22 | some >> 2)
            done += some
            begun += 1
    return status


@triton.jit
def put(queue, peer, dst_offset, local, src_offset, nbytes, block: tl.constexpr = 1024):
    """Write ``nbytes`` of a local to a peer's memory. The local may be changed after `flush`."""
    return _transfer(queue, peer, PUT, dst_offset, local, src_offset, nbytes, block)


@triton.jit
def get(queue, peer, src_offset, local, dst_offset, nbytes, block: tl.constexpr = 1024):
    """Read ``nbytes`` of a peer's memory into a local. They are there after `flush`."""
    return _transfer(queue, peer, GET, src_offset, local, dst_offset, nbytes, block)


@triton.jit
def flush(queue, peer):
    """Wait until everything that was posted to a peer by now is there, and gets have arrived."""
    status = as_word(OK)
    if not is_peer(queue, peer):
        status = refuse(queue, peer)
    else:
        peer_at = peer_of(queue, peer)
        posted = order(peer_at)
        if read(peer_at, 0) != PEER:
            status = wait_for(queue, peer, read(peer_at, 5), posted, 1)
        if status == OK:
            # A failure is seen before the entries that it has ended.
            status = state_of(queue, peer)
    return status


@triton.jit
def quiet(queue):
    """Do `flush` for one peer after the other; return the first status that is not OK."""
    status = as_word(OK)
    peer = as_word(0)
    while peer < read(queue, 1):
        found = flush(queue, peer)
        if status == OK:
            status = found
        peer += 1
    return status


@triton.jit
def fence(queue, peer):
    """Let nothing that the program does next at a peer be seen there before what it has done before. Does not wait."""
    status = as_word(OK)
    peer_at = peer_of(queue, peer)
    if not is_peer(queue, peer):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        order(peer_at)
    else:
        status, _ = post_value(queue, peer, FENCE, 0, 0)
    return status
