"""Lengths on both sides of every switch between protocols, and where in the memories they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from support.patience import LAB

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# 256: what a frame carries in itself. 4 KiB: a page, and the longest answer that is copied into its frame.
SMALL = (0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097)
# 8 KiB: the longest eager message. 256 KiB: a slice, and what `post` copies itself. 1 MiB: several slices.
MIDDLE = tuple(switch + step for switch in (8 * KIB, 64 * KIB, 256 * KIB, MIB) for step in (-1, 0, 1))
# 4 MiB: copies go past the cache from here on.
LARGE: tuple[int, ...] = (4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 16 * MIB + 3)
if LAB:  # where a NIC is a program in an emulated machine, and 20 MB take a second
    LARGE = (4 * MIB + 1,)

# Where a transfer may start: aligned, off by one, across a cache line, across a page.
_PLACES = ((0, 0), (1, 3), (4095, 1), (63, 64))
_FARTHEST = 4095
# What a test's buffers must hold for every case below.
ROOM = LARGE[-1] + 2 * _FARTHEST + 8192


class Case(NamedTuple):
    """One transfer; `value` is its notification, None without."""

    nbytes: int
    source: int
    target: int
    value: int | None
    seed: int


def cases(*, notified: bool) -> Iterator[Case]:
    """Small lengths at every place, middle ones at two, large ones at one; each length with and without a
    notification where `notified`. The first and the last notification are the extreme values of 32 bits."""
    seed = 0
    values = iter([0, 0xFFFF_FFFF])
    for nbytes in SMALL + MIDDLE + LARGE:
        places = _PLACES if nbytes in SMALL else _PLACES[:2] if nbytes in MIDDLE else _PLACES[1:2]
        for turn, (source, target) in enumerate(places):
            seed += 1
            value = next(values, seed) if notified and (turn % 2 == 1 or len(places) == 1) else None
            yield Case(nbytes, source, target, value, seed)


def thorough_cases() -> Iterator[Case]:
    """Every length at every pair of places, all of them notified."""
    starts = (0, 1, 3, 7, 8, 63, 64, 65, _FARTHEST)
    seed = 0
    for nbytes in SMALL + MIDDLE:
        for source in starts:
            for target in starts:
                seed += 1
                yield Case(nbytes, source, target, seed, seed)


class Pages(NamedTuple):
    """A page list: so many of `pool` pages of `page_bytes` each."""

    page_bytes: int
    pages: int
    pool: int


PAGE_LISTS = (
    Pages(1024, 0, 8),
    Pages(1, 1, 1),
    Pages(1, 257, 300),
    Pages(7, 33, 50),
    Pages(8, 1000, 1024),
    Pages(8, 20_000, 32_768),  # more than one request of a read holds
    Pages(64, 256, 512),
    Pages(1000, 100, 128),
    Pages(1024, 256, 1024),
    Pages(4095, 17, 32),
    Pages(4096, 64, 128),
    Pages(16 * KIB, 16, 48),
    Pages(64 * KIB + 1, 9, 16),
    Pages(256 * KIB + 1, 3, 5),
    Pages(MIB + 1, 2, 3),
)
PAGE_ROOM = max(listed.page_bytes * listed.pool for listed in PAGE_LISTS) + 16384
