"""Measures the floor of reads into memory of a GPU: threads that read into pinned memory, and the driver's copies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop import _floors
from zerohop.cli.bench.block_file import content
from zerohop.cli.bench.fio import Turn

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.cli.bench.rows import Case

# Which number is the best depends on the machine's processors and memory.
_THREADS: Final = (1, 4, 16)


class GpuReaders:
    """Reads the blocks of a file in order into memory of a GPU, by several numbers of threads; the best one counts.

    Attributes:
        name: what a row calls this.
        verified: whether no wrong byte has arrived so far.
    """

    name: Final = "best of 1, 4 and 16 threads, pinned memory"

    def __init__(self, path: Path, case: Case) -> None:
        """Allocate the memory."""
        assert case.dst is not None
        device = int(case.dst.partition(":")[2])
        self._nbytes = case.bytes
        self._floors = [_floors.FileToGpu(str(path), device, case.bytes, count) for count in _THREADS]
        self.verified = True

    def turn(self, seconds: float) -> Turn:
        """Read for so many seconds with each number of threads; compare what arrived last; return the best."""
        turns = [self._turn(floor, count, seconds) for floor, count in zip(self._floors, _THREADS, strict=True)]
        return max(turns, key=lambda turn: turn.rate)

    def check(self) -> None:
        """Do nothing: a turn compares what it has read."""

    def close(self) -> None:
        """Give the memory back."""
        self._floors.clear()

    def _turn(self, floor: _floors.FileToGpu, threads: int, seconds: float) -> Turn:
        cpu = time.process_time()
        blocks, nanoseconds = floor.read(seconds)
        turn = Turn(nanoseconds / 1e9, blocks, time.process_time() - cpu)
        here = np.empty(2 * threads * self._nbytes, np.uint8)
        offsets = np.array(floor.take(here))
        there = here.reshape(len(offsets), self._nbytes)[offsets >= 0]
        self.verified &= np.array_equal(there.reshape(-1), content(offsets[offsets >= 0], self._nbytes))
        return turn
