"""Declares the kernel of shmem.py; a file of its own, because Triton reads the source of kernels."""

from __future__ import annotations

import triton
import triton.language as tl

import zerohop.device.triton as zd

BLOCK = tl.constexpr(4096)
PLACES = tl.constexpr(64)
RING_AT = tl.constexpr(16 * 64)


@triton.jit
def count_wrong(at, value):
    """Return how many bytes of a block do not have this value."""
    found = tl.load(at.to(tl.pointer_type(tl.uint8)) + tl.arange(0, BLOCK), volatile=True)
    return tl.sum((found.to(tl.int64) != value).to(tl.int64))


@triton.jit
def exchange(queue, report, heap, rank, ranks):
    """Pass a block to the next rank, send one to every rank, wait for those that come, and check them."""
    status = tl.full((), 0, tl.int64)
    wrong = tl.full((), 0, tl.int64)
    following = (rank + 1) % ranks
    before = (rank + ranks - 1) % ranks
    # The ring: peer and signal by their numbers, both in the same heap.
    status = zd.put_signal(queue, following, RING_AT, 0, following * BLOCK, BLOCK, 0, 1)
    if status == 0:
        status = zd.wait_signal(queue, 1, 0, 1, before)
    if status == 0:
        wrong += count_wrong(heap + RING_AT, (before * 16 + rank * 3 + 1) % 251)
    other = tl.full((), 0, tl.int64)
    while (other < ranks) & (status == 0):
        place = RING_AT + BLOCK * (rank + 1)
        status = zd.put_signal(queue, other, place, 0, other * BLOCK, BLOCK, 8 * (PLACES + rank), 1)
        other += 1
    other = tl.full((), 0, tl.int64)
    while (other < ranks) & (status == 0):
        status = zd.wait_signal(queue, 1, 8 * (PLACES + other), 1, other)
        if status == 0:
            wrong += count_wrong(heap + RING_AT + BLOCK * (other + 1), (other * 16 + rank * 3 + 1) % 251)
        other += 1
    if status == 0:
        status = zd.quiet(queue)
    at = report.to(tl.pointer_type(tl.int64))
    tl.store(at, status)
    tl.store(at + 1, wrong)
