"""Moves bytes between a peer's memory and memory of this side."""

from __future__ import annotations

import triton
import triton.language as tl

from zerohop.device.triton.fields import FAILURE, PEER_COUNT, TIMEOUT_NS
from zerohop.device.triton.pairs import fence_by_nic, flush_by_nic, transfer_by_nic
from zerohop.device.triton.posting import FENCE, GET, MOST_BYTES, PUT, head, post, post_at
from zerohop.device.triton.waits import begin_flush, wait_for_count
from zerohop.device.triton.words import (
    FAILED,
    MLX5,
    OK,
    PEER,
    READ,
    WRITE,
    as_word,
    fifo_of,
    fits,
    is_peer,
    local_entry,
    look_together,
    peer_counters,
    peer_entry,
    peer_of,
    read,
    refuse,
    state_of,
    word,
)


@triton.jit
def copy(target, source, nbytes, block: tl.constexpr):
    """Copy bytes between two addresses, which the GPU reaches both; by words where both are aligned to 16."""
    at = tl.arange(0, block)
    if (target | source) % 16 == 0:
        # Counted in pieces of 16 bytes, so that the compiler knows that a thread may move two words at once.
        pieces = nbytes // 16
        piece = pieces * 0
        while piece < pieces:
            mask = piece * 2 + at < pieces * 2
            to = tl.multiple_of((target + piece * 16).to(tl.pointer_type(tl.int64)), 16)
            of = tl.multiple_of((source + piece * 16).to(tl.pointer_type(tl.int64)), 16)
            tl.store(to + at, tl.load(of + at, mask=mask, volatile=True), mask=mask)
            piece += block // 2
        rest = pieces * 16 + tl.arange(0, 16)
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
def is_transfer(op: tl.constexpr, there, peer_nbytes, peer_rights, here, local_nbytes, local_rights, nbytes):
    """Tell whether both ranges lie within their memory, and its rights allow the transfer."""
    inside = fits(there, nbytes, peer_nbytes) & fits(here, nbytes, local_nbytes)
    of_peer: tl.constexpr = READ if op == GET else WRITE
    of_local: tl.constexpr = WRITE if op == GET else READ
    return inside & ((peer_rights & of_peer) != 0) & ((local_rights & of_local) != 0)


@triton.jit
def transfer(queue, peer, mode, base, op: tl.constexpr, there, local, local_base, here, nbytes, block: tl.constexpr):
    """Carry out a transfer that `is_transfer` has allowed, or post it. ``mode`` and the bases: from the entries."""
    status = as_word(OK)
    # Lengths depend on the mode, though it changes none: a constant one could leave a loop that never runs, which
    # Triton's compiler does not take.
    if mode == PEER:
        tl.debug_barrier()  # all threads' stores come before the copy
        length = nbytes + (mode - PEER)
        if op == GET:
            copy(local_base + here, base + there, length, block)
        else:
            copy(base + there, local_base + here, length, block)
    elif mode == MLX5:
        status = transfer_by_nic(queue, peer, base, op, there, local, local_base, here, nbytes + (mode - MLX5))
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
def _checked(queue, peer, op: tl.constexpr, peer_offset, local, local_offset, nbytes, block: tl.constexpr, before):
    there, here, length = as_word(peer_offset), as_word(local_offset), as_word(nbytes)
    mode, base, peer_nbytes, peer_rights = peer_entry(queue, peer)
    local_base, local_nbytes, local_rights, _ = local_entry(queue, local)
    status = as_word(before)
    if status == OK:
        if is_transfer(op, there, peer_nbytes, peer_rights, here, local_nbytes, local_rights, length):
            status = transfer(queue, peer, mode, base, op, there, local, local_base, here, length, block)
        else:
            status = refuse(queue, peer)
    return status


@triton.jit
def put(queue, peer, dst_offset, local, src_offset, nbytes, block: tl.constexpr = 1024, status=0):
    """Write ``nbytes`` of a local to a peer's memory. The local may be changed after `flush`."""
    return _checked(queue, peer, PUT, dst_offset, local, src_offset, nbytes, block, status)


@triton.jit
def get(queue, peer, src_offset, local, dst_offset, nbytes, block: tl.constexpr = 1024, status=0):
    """Read ``nbytes`` of a peer's memory into a local. They are there after `flush`."""
    return _checked(queue, peer, GET, src_offset, local, dst_offset, nbytes, block, status)


@triton.jit
def _order(posted):
    """Order all that the program has done before all that it does next, for the system; return the entries posted."""
    return tl.atomic_add(word(posted, 0), 0, sem="acq_rel", scope="sys")


@triton.jit
def _flush(queue, peer, mode, posted, ended_at, copy_at, timeout_ns):
    """Flush to a peer that there is; what follows it: from its entry, and the Queue's."""
    status = as_word(OK)
    if mode == MLX5:
        status = flush_by_nic(queue, peer)
    else:
        tl.debug_barrier()
        found = as_word(0)
        if mode == PEER:
            found = _order(posted)
            if found >= 0:
                found = look_together(ended_at)
        else:
            count, begun = begin_flush(posted, copy_at)
            number = tl.where(count < 0, 0, count)  # what has failed waits for nothing
            status, found = wait_for_count(queue, peer, ended_at, copy_at, begun, number, timeout_ns, False)
            found |= count
        if (status == OK) & ((found & FAILURE) != 0):
            status = state_of(queue, peer)
            if status == OK:
                status = as_word(FAILED)
    return status


@triton.jit
def flush(queue, peer, status=0):
    """Wait until everything that was posted to a peer by now is there, and gets have arrived."""
    # All is read before anything is asked, so that a compiler reads it once for all turns of a loop.
    known, timeout_ns = is_peer(queue, peer), read(queue, TIMEOUT_NS)
    mode, _, _, _ = peer_entry(queue, peer)
    posted, ended_at, _, copy_at = peer_counters(queue, peer)
    found = as_word(status)
    if found == OK:
        if known:
            found = _flush(queue, peer, mode, posted, ended_at, copy_at, timeout_ns)
        else:
            found = refuse(queue, peer)
    return found


@triton.jit
def quiet(queue, status=0):
    """Do `flush` for one peer after the other; return the first status that is not OK."""
    first = as_word(status)
    peer = as_word(0)
    if first == OK:
        while peer < read(queue, PEER_COUNT):
            found = flush(queue, peer)
            if first == OK:
                first = found
            peer += 1
    return first


@triton.jit
def fence(queue, peer, status=0):
    """Let nothing that the program does next at a peer be seen there before what it has done before. Does not wait."""
    known = is_peer(queue, peer)
    mode, _, _, _ = peer_entry(queue, peer)
    posted, _, _, _ = peer_counters(queue, peer)
    fifo, slots, head_at, copy_at = fifo_of(queue)
    found = as_word(status)
    if found == OK:
        if not known:
            found = refuse(queue, peer)
        elif mode == PEER:
            tl.debug_barrier()
            _order(posted)
        elif mode == MLX5:
            found = fence_by_nic(queue, peer)
        else:
            found, _ = post_at(queue, fifo, slots, head_at, copy_at, posted, head(FENCE, peer, 0), as_word(0))
    return found
