"""Reads the blocks of a file through a Ring, as the rows about files do, and compares every byte."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop.cli.bench.block_file import content
from zerohop.cli.bench.fio import Turn
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.bench.storage_plan import ALL_IN_ORDER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zerohop.cli.bench.rows import Case
    from zerohop.storage import Store
    from zerohop.storage.file import File

HOST_BESIDE: Final = "into host memory"


class BlockReader:
    """Reads the blocks of a file through a Ring, `case.batch` at a time, into an Iov that has room for as many.

    Attributes:
        name: what the row of a device calls the reader that takes turns with it.
        verified: whether no wrong byte has arrived so far.
    """

    name: Final = HOST_BESIDE

    def __init__(self, store: Store, file: File, case: Case, device: str) -> None:
        """Allocate the memory, on the host or on a device."""
        self._file, self._nbytes, self._depth = file, case.bytes, case.batch
        self._iov = store.iov(case.bytes * case.batch, device)
        self._ring = store.ring(case.batch)
        self._lengths = np.full(case.batch, case.bytes)
        # Python is called for so many results at least: of small reads there are too many to see to each alone.
        self._least = 1 if case.name in ALL_IN_ORDER else max(1, case.batch // 4)
        blocks = file.size // case.bytes
        order = np.arange(blocks) if case.name in ALL_IN_ORDER else np.random.default_rng(blocks).permutation(blocks)
        # Ends as it begins, so that each batch is a slice.
        self._order = np.resize(order, blocks + case.batch) * case.bytes
        self._blocks, self._next = blocks, 0
        self._in_slot = np.zeros(case.batch, np.int64)  # the offset whose bytes each slot is to have
        self.verified = True

    def turn(self, seconds: float) -> Turn:
        """Read for so many seconds; then compare what the memory has, which was zeros, with what the file has."""
        self._clear()
        slots = np.arange(self._depth)
        cpu, started = time.process_time(), time.perf_counter()
        ends = started + seconds
        self._begin(slots)
        operations = 0
        while time.perf_counter() < ends:
            slots = self._ended(self._least)
            operations += slots.size
            self._begin(slots)
        while (left := self._ended(1)).size:
            operations += left.size
        turn = Turn(time.perf_counter() - started, operations, time.process_time() - cpu)
        self._compare()
        return turn

    def check(self) -> None:
        """Read the whole file once, and compare all of it."""
        for _ in range(-(-self._blocks // self._depth)):
            self._clear()
            self._begin(np.arange(self._depth))
            left = self._depth
            while left:
                left -= self._ended(left).size
            self._compare()

    def close(self) -> None:
        """Give the memory back."""
        self._ring.close()
        self._iov.close()

    def _begin(self, slots: NDArray[np.int64]) -> None:
        count = slots.size
        offsets = self._order[self._next : self._next + count]
        self._next = (self._next + count) % self._blocks
        self._ring.prepare_many(self._iov, self._file, offsets, self._lengths[:count], slots * self._nbytes, slots)
        self._ring.submit()
        self._in_slot[slots] = offsets

    def _ended(self, least: int) -> NDArray[np.int64]:
        """Return the slots of reads that have ended; none if none was under way."""
        results = self._ring.wait_array(min_results=least, timeout=TIMEOUT)
        self.verified &= bool((results["result"] == self._nbytes).all())
        slots: NDArray[np.int64] = results["userdata"]
        return slots

    def _clear(self) -> None:
        self._iov.memory.write_bytes(0, bytes(self._iov.nbytes))

    def _compare(self) -> None:
        here = np.frombuffer(self._iov.memory.read_bytes(), np.uint8)
        self.verified &= np.array_equal(here, content(self._in_slot, self._nbytes))
