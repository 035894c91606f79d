"""Measures the limits of two GPUs, by `zerohop._floors` in this process, which sees both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop._floors import PAGES_KERNEL, GpuCopies
from zerohop.cli.bench.arrived import FloorBroken, placed
from zerohop.core import kernels

if TYPE_CHECKING:
    from zerohop.cli.bench.arrived import Pages
    from zerohop.cli.bench.case import Case
    from zerohop.cli.payload import Octets

_GRIDS: Final = (132, 264, 528)
_TRIES: Final = 5


class GpuFloors:
    """Copies between the two GPUs of one case; allocates their memory when it is made, and frees it at its end."""

    def __init__(self, case: Case, nbytes: int) -> None:
        """Allocate `nbytes` on each of the two GPUs."""
        assert case.src is not None
        assert case.dst is not None
        here, there = (int(place.partition(":")[2] or 0) for place in (case.src, case.dst))
        self._copies = GpuCopies(here, there, nbytes)
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

    def pages(
        self, image: bytes, source: Octets, here: Pages, there: Pages, page_bytes: int, batch: int, rounds: int
    ) -> list[int]:
        """Run one kernel for each list of pages, whose numbers lie on the GPU; with the fastest of three grids."""

        def run(count: int, blocks: int) -> list[int]:
            return self._copies.pages(image, here, there, page_bytes, batch, count, self._pull, blocks)

        self._copies.fill(source)
        if not self._blocks:
            run(_TRIES, _GRIDS[0])  # the first launch loads the kernel
            self._blocks = min(_GRIDS, key=lambda blocks: sorted(run(_TRIES, blocks))[_TRIES // 2])
        lists = len(here) // batch
        times = run(max(rounds, lists), self._blocks)
        self._check(placed(source, here, there, page_bytes))
        return times

    def _check(self, expected: Octets) -> None:
        found = np.zeros_like(expected)
        self._copies.take(found)
        if not np.array_equal(found, expected):
            raise FloorBroken("a copy between GPUs delivered wrong bytes")


def page_kernel(capability: int) -> tuple[bytes | None, str]:
    """Return the floor's kernel, compiled for a device of that compute capability; else None and the reason."""
    return kernels.compiled(PAGES_KERNEL, capability)
