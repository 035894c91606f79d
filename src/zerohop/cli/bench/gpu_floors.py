"""Measures the raw limits of GPUs by `zerohop._floors`: copies between two of them, and opening allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop._floors import KERNELS, GpuCopies, open_allocations
from zerohop.cli.payload import Octets, PageLists, RangeLists, random_bytes
from zerohop.core import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.peer import PeerProcess

# Numbers of blocks of the kernel for page lists, and launches to find the fastest of them.
_GRIDS: Final = (132, 264, 528)
_TRIES: Final = 5


class FloorBroken(RuntimeError):
    """Raised if a floor delivered wrong bytes: this machine, or the measurement, is not to be trusted."""


class GpuFloors:
    """Copies between the two GPUs of one case; allocates their memory when it is made, and frees it at its end."""

    def __init__(self, case: Case, nbytes: int) -> None:
        """Allocate `nbytes` on each of the two GPUs."""
        self._copies = GpuCopies(_number(case.src), _number(case.dst), nbytes)
        # For a read, the copy runs on the reader's own GPU.
        self._pull = case.reads
        self._blocks = 0

    def copy(self, source: Octets, rounds: int) -> list[int]:
        """Copy, and synchronise the stream."""
        self._copies.fill(source)
        times = self._copies.copy(source.size, rounds, self._pull)
        self._check(source)
        return times

    def copy_word(self, source: Octets, rounds: int) -> list[int]:
        """Copy, then write a word that the host waits for."""
        self._copies.fill(source)
        times = self._copies.copy_word(source.size, rounds)
        self._check(source)
        return times

    def pages(self, image: bytes, source: Octets, lists: PageLists, rounds: int) -> list[int]:
        """Run one kernel for each list of pages, whose numbers lie on the GPU; with the fastest of three grids."""

        def run(count: int, blocks: int) -> list[int]:
            return self._copies.pages(image, *lists, count, self._pull, blocks)

        self._copies.fill(source)
        times = run(max(rounds, len(lists.here) // lists.batch), self._fastest_grid(run))
        self._check(lists.placed(source))
        return times

    def ranges(self, image: bytes, source: Octets, lists: RangeLists, rounds: int) -> list[int]:
        """Run one kernel for the whole list of ranges, which lies on the GPU; with the fastest of three grids."""

        def run(count: int, blocks: int) -> list[int]:
            return self._copies.ranges(image, *lists, count, self._pull, blocks)

        self._copies.fill(source)
        times = run(rounds, self._fastest_grid(run))
        self._check(lists.placed(source))
        return times

    def _fastest_grid(self, run: Callable[[int, int], list[int]]) -> int:
        """Return the number of blocks for a kernel, which is found at its first use."""
        if not self._blocks:
            run(_TRIES, _GRIDS[0])  # the first launch loads the kernel
            self._blocks = min(_GRIDS, key=lambda blocks: sorted(run(_TRIES, blocks))[_TRIES // 2])
        return self._blocks

    def _check(self, expected: Octets) -> None:
        found = np.zeros_like(expected)
        self._copies.take(found)
        if not np.array_equal(found, expected):
            raise FloorBroken("a copy between GPUs delivered wrong bytes")


def copy_kernels(capability: int) -> tuple[bytes | None, str]:
    """Return the floors' kernels, compiled for a device of that compute capability; else None and the reason."""
    return kernels.compiled(KERNELS, capability)


def open_new(peer: PeerProcess, case: Case, count: int, nbytes: int, seed: int) -> list[int]:
    """Open new allocations of the second process on the GPU that the case reads to, and compare their first bytes.

    Args:
        peer: the second process.
        case: a case between two GPUs.
        count: how many allocations to open.
        nbytes: size of each.
        seed: names the bytes that they hold.
    """
    wanted = random_bytes(seed, count * case.bytes)
    there = _number(case.src)
    made = peer.call("floor_allocate", device=there, count=count, nbytes=nbytes, filled=case.bytes, seed=seed)
    found = np.zeros_like(wanted)
    times = open_allocations(_number(case.dst), [bytes.fromhex(each) for each in made["handles"]], found)
    peer.call("floor_free")
    if not np.array_equal(found, wanted):
        raise FloorBroken("opened allocations hold wrong bytes")
    return times


def _number(place: str | None) -> int:
    """Return the number of a GPU."""
    assert place is not None
    return int(place.partition(":")[2] or 0)
