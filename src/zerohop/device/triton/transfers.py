"""Moves bytes between a peer's memory and memory of this side."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.posting import FENCE, GET, MOST_BYTES, PUT, head, post, post_value
from zerohop.device.triton.words import (
    OK,
    PEER,
    TIMED_OUT,
    fits,
    is_local,
    is_peer,
    local_of,
    look,
    now,
    order,
    peer_of,
    read,
    refuse,
    state_of,
    word,
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
    status = tl.full((), OK, tl.int64)
    peer_at = peer_of(queue, peer)
    local_at = local_of(queue, local)
    length = tl.full((), 0, tl.int64) + nbytes
    there = tl.full((), 0, tl.int64) + peer_offset
    here = tl.full((), 0, tl.int64) + local_offset
    right = read(peer_at, 3) & 2
    if op == GET:
        right = read(peer_at, 3) & (read(local_at, 2) >> 1) & 1
    known = is_peer(queue, peer) & is_local(queue, local)
    if (
        (not known)
        | (right == 0)
        | (not fits(there, length, read(peer_at, 2)))
        | (not fits(here, length, read(local_at, 1)))
    ):
        status = refuse(queue, peer)
    elif read(peer_at, 0) == PEER:
        remote_at = read(peer_at, 1) + there
        mine = read(local_at, 0) + here
        if op == GET:
            copy(mine, remote_at, length, block)
        else:
            copy(remote_at, mine, length, block)
    else:
        done = tl.full((), 0, tl.int64)
        begun = tl.full((), 0, tl.int32)
        while ((done < length) | (begun == 0)) & (status == OK):
            some = tl.minimum(length - done, MOST_BYTES)
            first = head(op, peer, there + done) | (tl.full((), 0, tl.int64) + local) << 2 | (some & 3)
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
    peer_at = peer_of(queue, peer)
    order(peer_at)
    status = tl.full((), OK, tl.int64)
    if not is_peer(queue, peer):
        status = refuse(queue, peer)
    elif read(peer_at, 0) != PEER:
        posted = tl.atomic_add(word(read(peer_at, 4), 0), 0, sem="acquire", scope="gpu")
        ended_at = read(peer_at, 5)
        until = now() + read(queue, 12)
        ended = look(ended_at)
        while (ended < posted) & (status == OK):
            status = state_of(queue, peer)
            if (status == OK) & (now() > until):
                status = tl.full((), TIMED_OUT, tl.int64)
            ended = look(ended_at)
        order(peer_at)
    if status == OK:
        # A failure is seen before the entries that it has ended.
        status = state_of(queue, peer)
    return status


@triton.jit
def quiet(queue):
    """Do `flush` for all peers; return the first status that is not OK."""
    status = tl.full((), OK, tl.int64)
    peer = tl.full((), 0, tl.int64)
    while peer < read(queue, 1):
        found = flush(queue, peer)
        if status == OK:
            status = found
        peer += 1
    return status


@triton.jit
def fence(queue, peer):
    """Let nothing that the program does next at a peer be seen there before what it has done before. Does not wait."""
    status = tl.full((), OK, tl.int64)
    peer_at = peer_of(queue, peer)
    if read(peer_at, 0) == PEER:
        order(peer_at)
    else:
        status, _ = post_value(queue, peer, FENCE, 0, 0)
    return status
