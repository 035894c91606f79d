"""Blocks of a file that are written again and again, a few at a time, and what may be in the file when that ends."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

import zerohop as zh
from support.patience import PATIENCE_S
from support.pattern import expect_equal, pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from support.pattern import Bytes
    from zerohop.storage import File

# Every other block is written: those between them are nobody's. No block ends where a page does.
BLOCKS: Final = 16
BLOCK: Final = 100_003
FILE_BYTES: Final = 2 * BLOCKS * BLOCK
# Writes that are under way at once.
DEPTH: Final = 4


@lru_cache(8)
def _round(number: int) -> Bytes:
    return pattern(1000 + number, BLOCKS * BLOCK)


def content(index: int) -> Bytes:
    """What the write of that number writes; it goes to block `index % BLOCKS`."""
    at = index % BLOCKS * BLOCK
    return _round(index // BLOCKS)[at : at + BLOCK]


def write_blocks(context: zh.Context, file: File, acknowledged: Callable[[int], object]) -> int:
    """Write one block after the other, DEPTH of them at a time, and tell of each that is acknowledged, until the server
    is lost; returns how many writes had begun."""
    under_way: deque[tuple[int, zh.Operation[int]]] = deque()
    sources = [context.alloc(BLOCK) for _ in range(DEPTH)]
    index = 0
    lost = False
    while not lost or under_way:
        if not lost and len(under_way) < DEPTH:
            source = sources[index % DEPTH]
            source.numpy()[:] = content(index)
            under_way.append((index, file.write_from(source, 2 * (index % BLOCKS) * BLOCK)))
            index += 1
            continue
        number, operation = under_way.popleft()
        try:
            assert operation.result(PATIENCE_S) == BLOCK
            acknowledged(number)
        except zh.PeerLost:
            lost = True
    for source in sources:
        source.close()
    return index


def expect_blocks(found: Bytes, before: Bytes, acknowledged: Collection[int], begun: int) -> None:
    """Raise AssertionError unless each block has what was acknowledged last, or parts of writes that began later, and
    all bytes between the blocks are as before."""
    assert found.nbytes == before.nbytes == FILE_BYTES
    there, old = found.reshape(2 * BLOCKS, BLOCK), before.reshape(2 * BLOCKS, BLOCK)
    expect_equal(there[1::2].reshape(-1), old[1::2].reshape(-1), "the bytes between the blocks")
    for block in range(BLOCKS):
        numbers = range(block, begun, BLOCKS)
        last = max((each for each in numbers if each in acknowledged), default=-1)
        least = old[2 * block] if last < 0 else content(last)
        later = [each for each in numbers if each > last]
        if not later:
            expect_equal(there[2 * block], least, f"block {block}, acknowledged as {last}")
            continue
        right = there[2 * block] == least
        for each in later:
            right |= there[2 * block] == content(each)
        assert right.all(), f"block {block} has bytes of no write: {np.flatnonzero(~right)[:5]}"
