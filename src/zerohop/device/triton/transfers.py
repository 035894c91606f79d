"""Moves bytes between a peer's memory and memory of this side."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.fields import (
    BASE,
    ENDED,
    LOCAL_BASE,
    LOCAL_NBYTES,
    LOCAL_RIGHTS,
    MODE,
    NBYTES,
    PEER_COUNT,
    RIGHTS,
)
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
    at = tl.arange(0, block)
    if (target | source) % 16 == 0:
        to = tl.multiple_of(target, 16)
        of = tl.multiple_of(source, 16)
        words = nbytes // 8
        start = words * 0
        while start < words:
            mask = start + at < words
            value = tl.load((of + start * 8).to(tl.pointer_type(tl.int64)) + at, mask=mask, volatile=True)
            tl.store((to + start * 8).to(tl.pointer_type(tl.int64)) + at, value, mask=mask)
            start += block
        rest = words * 8 + tl.arange(0, 8)
        mask = rest < nbytes
        value = tl.load(source.to(tl.pointer_type(tl.int8)) + rest, mask=mask, volatile=True)
        tl.store(target.to(tl.pointer_type(tl.int8)) + rest, value, mask=mask)
    else:
        done = nbytes * 0
        while done < nbytes:
            mask = done + at < nbytes
            value = tl.load((source + done).to(tl.pointer_type(tl.int8)) + at, mask=mask, volatile=True)
            tl.store((target + done).to(tl.pointer_type(tl.int8)) + at, value, mask=mask)
            done += block


@triton.jit
def is_transfer(queue, peer, op: tl.constexpr, there, local, here, nbytes):
    """Tell whether both ranges lie within their memory, and its rights allow the transfer."""
    peer_at = peer_of(queue, peer)
    local_at = local_of(queue, local)
    known = is_peer(queue, peer) & is_local(queue, local)
    inside = fits(there, nbytes, read(peer_at, NBYTES)) & fits(here, nbytes, read(local_at, LOCAL_NBYTES))
    of_peer: tl.constexpr = READ if op == GET else WRITE
    of_local: tl.constexpr = WRITE if op == GET else READ
    may = ((read(peer_at, RIGHTS) & of_peer) != 0) & ((read(local_at, LOCAL_RIGHTS) & of_local) != 0)
    return known & inside & may


@triton.jit
def transfer(queue, peer, mode, base, op: tl.constexpr, there, local, local_base, here, nbytes, block: tl.constexpr):
    """Carry out a transfer that `is_transfer` has allowed, or post it. ``mode`` and the bases: from the descriptor."""
    status = as_word(OK)
    if mode == PEER:
        # All threads' stores come before the copy, and no constant length leaves a loop that never runs: Triton's
        # compiler does not take that.
        tl.debug_barrier()
        length = nbytes + (mode - PEER)
        if op == GET:
            copy(local_base + here, base + there, length, block)
        else:
            copy(base + there, local_base + here, length, block)
    else:
        done = as_word(0)
        begun = tl.full((), 0, tl.int32)
        while ((done < nbytes) | (begun == 0)) & (status == OK):
            some = tl.minimum(nbytes - done, MOST_BYTES)
            first = head(op, peer, there + done) | as_word(local) << 2 | (some & 3)
            status, _ = post(queue, peer_of(queue, peer), first, (here + done) << 22 | some >> 2)
            done += some
            begun += 1
    return status


@triton.jit
def _checked(queue, peer, op: tl.constexpr, peer_offset, local, local_offset, nbytes, block: tl.constexpr):
    there, here, length = as_word(peer_offset), as_word(local_offset), as_word(nbytes)
    # All that a transfer needs is read before the first branch, at once: after a wait it lies in no near cache.
    mode = read(peer_of(queue, peer), MODE)
    base = read(peer_of(queue, peer), BASE)
    local_base = read(local_of(queue, local), LOCAL_BASE)
    status = as_word(OK)
    if is_transfer(queue, peer, op, there, local, here, length):
        status = transfer(queue, peer, mode, base, op, there, local, local_base, here, length, block)
    else:
        status = refuse(queue, peer)
    return status


@triton.jit
def put(queue, peer, dst_offset, local, src_offset, nbytes, block: tl.constexpr = 1024):
    """Write ``nbytes`` of a local to a peer's memory. The local may be changed after `flush`."""
    return _checked(queue, peer, PUT, dst_offset, local, src_offset, nbytes, block)


@triton.jit
def get(queue, peer, src_offset, local, dst_offset, nbytes, block: tl.constexpr = 1024):
    """Read ``nbytes`` of a peer's memory into a local. They are there after `flush`."""
    return _checked(queue, peer, GET, src_offset, local, dst_offset, nbytes, block)


@triton.jit
def flush(queue, peer):
    """Wait until everything that was posted to a peer by now is there, and gets have arrived."""
    status = as_word(OK)
    if not is_peer(queue, peer):
        status = refuse(queue, peer)
    else:
        peer_at = peer_of(queue, peer)
        posted = order(peer_at)
        if read(peer_at, MODE) != PEER:
            status = wait_for(queue, peer, read(peer_at, ENDED), posted, 1)
        if status == OK:
            # A failure is seen before the entries that it has ended.
            status = state_of(queue, peer)
    return status


@triton.jit
def quiet(queue):
    """Do `flush` for one peer after the other; return the first status that is not OK."""
    status = as_word(OK)
    peer = as_word(0)
    while peer < read(queue, PEER_COUNT):
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
    elif read(peer_at, MODE) == PEER:
        order(peer_at)
    else:
        status, _ = post_value(queue, peer, FENCE, 0, 0)
    return status
