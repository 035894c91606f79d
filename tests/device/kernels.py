"""One kernel for each function of `zerohop.device.triton`; each writes what it returns to an address."""

from __future__ import annotations

import triton
import triton.language as tl

import zerohop.device.triton as zd
from zerohop.device.triton.words import local_entry


@triton.jit
def tell(report, status, value):
    at = report.to(tl.pointer_type(tl.int64))
    tl.store(at, status)
    tl.store(at + 1, value)


@triton.jit
def put(queue, report, peer, there, local, here, nbytes):
    tell(report, zd.put(queue, peer, there, local, here, nbytes), 0)


@triton.jit
def get(queue, report, peer, there, local, here, nbytes):
    status = zd.get(queue, peer, there, local, here, nbytes)
    if status == 0:
        status = zd.flush(queue, peer)
    tell(report, status, 0)


@triton.jit
def put_signal(queue, report, peer, there, local, here, nbytes, at, value):
    tell(report, zd.put_signal(queue, peer, there, local, here, nbytes, at, value), 0)


@triton.jit
def signal(queue, report, peer, at, value):
    tell(report, zd.signal(queue, peer, at, value), 0)


@triton.jit
def signal_add(queue, report, peer, at, value):
    tell(report, zd.signal(queue, peer, at, value, add=True), 0)


@triton.jit
def wait_signal(queue, report, local, at, value, peer):
    tell(report, zd.wait_signal(queue, local, at, value, peer), 0)


@triton.jit
def flush(queue, report, peer):
    tell(report, zd.flush(queue, peer), 0)


@triton.jit
def fence(queue, report, peer):
    tell(report, zd.fence(queue, peer), 0)


@triton.jit
def quiet(queue, report):
    tell(report, zd.quiet(queue), 0)


# Each of these three calls functions with a status from before, and tells how many have returned another one. They are
# three because the compiler's time grows with the square of the calls in a kernel.


@triton.jit
def transfers_after(queue, report, peer, nbytes, at, status):
    others = (zd.put(queue, peer, 0, 0, 0, nbytes, status=status) != status).to(tl.int64)
    others += zd.get(queue, peer, 0, 1, 0, nbytes, status=status) != status
    others += zd.put_signal(queue, peer, 0, 0, 0, nbytes, at, 1, status=status) != status
    tell(report, status, others)


@triton.jit
def words_after(queue, report, peer, at, status):
    others = (zd.signal(queue, peer, at, 1, status=status) != status).to(tl.int64)
    others += zd.signal(queue, peer, at, 1, add=True, status=status) != status
    added, _ = zd.fetch_add(queue, peer, at, 1, status=status)
    swapped, _ = zd.compare_swap(queue, peer, at, 0, 1, status=status)
    others += (added != status).to(tl.int64) + (swapped != status)
    tell(report, status, others)


@triton.jit
def waits_after(queue, report, peer, status):
    others = (zd.fence(queue, peer, status=status) != status).to(tl.int64)
    others += zd.wait_signal(queue, 1, 0, 1 << 62, peer, status=status) != status
    others += zd.flush(queue, peer, status=status) != status
    others += zd.quiet(queue, status=status) != status
    tell(report, status, others)


@triton.jit
def fetch_add(queue, report, peer, at, value):
    status, old = zd.fetch_add(queue, peer, at, value)
    tell(report, status, old)


@triton.jit
def compare_swap(queue, report, peer, at, expected, desired):
    status, old = zd.compare_swap(queue, peer, at, expected, desired)
    tell(report, status, old)


@triton.jit
def put_many(queue, report, peer, local, nbytes, count):
    """Put the same bytes `count` times, one behind the other, and a fence between each two."""
    status = tl.full((), 0, tl.int64)
    done = tl.full((), 0, tl.int64)
    while (done < count) & (status == 0):
        status = zd.put(queue, peer, done * nbytes, local, done * nbytes, nbytes)
        if status == 0:
            status = zd.fence(queue, peer)
        if status == 0:
            done += 1
    if status == 0:
        status = zd.flush(queue, peer)
    tell(report, status, done)


@triton.jit
def ping_pong(queue, report, first, rounds, nbytes):
    """Send each part of local 0 to peer 0 in a round of its own, and wait for its part in local 1."""
    status = tl.full((), 0, tl.int64)
    done = tl.full((), 0, tl.int64)
    while (done < rounds) & (status == 0):
        turn = done + 1
        if first == 0:
            status = zd.wait_signal(queue, 1, 0, turn, 0)
        if status == 0:
            status = zd.put_signal(queue, 0, 8 + done * nbytes, 0, done * nbytes, nbytes, 0, turn)
        if (first != 0) & (status == 0):
            status = zd.wait_signal(queue, 1, 0, turn, 0)
        done += 1
    if status == 0:
        status = zd.quiet(queue)
    tell(report, status, done)


@triton.jit
def put_blocks(queue, report, nbytes, count, at):
    """Put `count` parts of local 0 to places of each program's own, and then add 1 to a signal."""
    status = tl.full((), 0, tl.int64)
    done = tl.full((), 0, tl.int64)
    block = tl.program_id(0).to(tl.int64)
    while (done < count) & (status == 0):
        place = (block * count + done) * nbytes
        status = zd.put(queue, 0, place, 0, place, nbytes)
        done += 1
    if status == 0:
        status = zd.signal(queue, 0, at, 1, add=True)
    if status == 0:
        status = zd.flush(queue, 0)
    if status != 0:
        tell(report, status, block)


@triton.jit
def get_blocks(queue, report, nbytes, poison):
    """Get a part of the peer's memory into local 1 in each program, flush, and look whether its last word has come."""
    block = tl.program_id(0).to(tl.int64)
    base, _, _, _ = local_entry(queue, 1)
    status = zd.get(queue, 0, block * nbytes, 1, block * nbytes, nbytes)
    if status == 0:
        status = zd.flush(queue, 0)
    if status == 0:
        last = (base + (block + 1) * nbytes - 8).to(tl.pointer_type(tl.int64))
        if tl.load(last, volatile=True) == poison:
            status = tl.full((), 99, tl.int64)
    if status != 0:
        tell(report, status, block)


@triton.jit
def echo(queue, report, counter, first, nbytes):
    """Make one round of a ping-pong; how many there were is counted in memory, so that a graph can be replayed."""
    at = counter.to(tl.pointer_type(tl.int64))
    turn = tl.load(at) + 1
    status = tl.full((), 0, tl.int64)
    if first == 0:
        status = zd.wait_signal(queue, 1, 0, turn, 0)
    if status == 0:
        status = zd.put_signal(queue, 0, 8, 0, turn * 8, nbytes, 0, 1, add=True)
    if (first != 0) & (status == 0):
        status = zd.wait_signal(queue, 1, 0, turn, 0)
    if status == 0:
        status = zd.quiet(queue)
    tl.store(at, turn)
    tell(report, status, turn)
