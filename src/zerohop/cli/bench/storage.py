"""Measures the rows about files: reads through a Ring into an Iov, taking turns with fio, or with host memory."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from zerohop.cli.bench.block_file import NoFile, block_file, content, file_system
from zerohop.cli.bench.fio import Fio, FioFails, Turn
from zerohop.cli.bench.rows import Row, Samples, percentile
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.bench.storage_plan import DISK, IN_ORDER
from zerohop.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Effort
    from zerohop.storage import Store
    from zerohop.storage.file import File

_SHARED_MEMORY: Final = "/dev/shm"
_HOST_BESIDE: Final = "into host memory"
_GIGA: Final = 1e9


class BlockReader:
    """Reads the blocks of a file through a Ring, `case.batch` at a time, into an Iov that has room for as many.

    Attributes:
        verified: whether no wrong byte has arrived so far.
    """

    def __init__(self, store: Store, file: File, case: Case, device: str) -> None:
        """Allocate the memory, on the host or on a device."""
        self._file, self._nbytes, self._depth = file, case.bytes, case.batch
        self._iov = store.iov(case.bytes * case.batch, device)
        self._ring = store.ring(case.batch)
        self._lengths = np.full(case.batch, case.bytes)
        # Python is called for so many results at least: of small reads there are too many to see to each alone.
        self._least = 1 if case.name == IN_ORDER else max(1, case.batch // 4)
        blocks = file.size // case.bytes
        order = np.arange(blocks) if case.name == IN_ORDER else np.random.default_rng(blocks).permutation(blocks)
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


def measure_storage(effort: Effort, case: Case) -> Row:
    """Read blocks of a new file, past the page cache if it is on a disk, in turn with another way to do that.

    The other way is fio on the same file, or for a device's memory the same reads into host memory. Verified: the whole
    file, read once in this way, and after each turn what the memory has then.
    """
    folder = effort.folder if case.form == DISK else _SHARED_MEMORY
    try:
        with block_file(folder, max(effort.file_bytes, case.memory_bytes), on_disk=case.form == DISK) as path:
            return _measure(effort, case, path)
    except NoFile as error:
        return replace(Row.of(case), verified=True, missing=str(error))


def _measure(effort: Effort, case: Case, path: Path) -> Row:
    assert case.dst is not None
    direct = case.form == DISK
    with ExitStack() as opened:
        store = opened.enter_context(open_store(path.parent, sim_devices=case.sim_devices))
        file = opened.enter_context(store.open(path.name, direct=direct).result(TIMEOUT))
        readers = [BlockReader(store, file, case, "sim:0" if case.dst == "sim" else case.dst)]
        if case.dst != "host":
            readers.append(BlockReader(store, file, case, "host"))
        for reader in readers:
            opened.callback(reader.close)
            reader.check()
        if direct and file.native().moved[1]:
            return replace(Row.of(case), verified=True, missing=f"{path.parent.parent} refuses O_DIRECT")
        turns, others, name = _alternate(effort, case, path, readers)
        row = _row(case, turns, others, name)
        row.verified = all(reader.verified for reader in readers)
        row.path = f"file ({store.engine}) on {file_system(str(path.parent))}"
    return row


def _alternate(
    effort: Effort, case: Case, path: Path, readers: Sequence[BlockReader]
) -> tuple[list[Turn], list[Turn], str]:
    """Return the turns of the first reader, those that others took between them, and what these others are."""
    fio, turns, others = Fio(), [], []
    name = _HOST_BESIDE if len(readers) > 1 else fio.name
    fails = False
    for number in range(effort.file_turns):
        if len(readers) > 1:
            first, second = readers if number % 2 else readers[::-1]
            pair = first.turn(effort.file_seconds), second.turn(effort.file_seconds)
            own, other = pair if number % 2 else pair[::-1]
            turns.append(own)
            others.append(other)
            continue
        if not fails:
            try:
                floor = fio.read(
                    path, case, effort.file_seconds, direct=case.form == DISK, in_order=case.name == IN_ORDER
                )
                others += [] if floor is None else [floor]
            except FioFails as error:
                fails, name = True, f"{fio.name} ({error})"
        turns.append(readers[0].turn(effort.file_seconds))
    return turns, [] if fails else others, name


def _row(case: Case, turns: Sequence[Turn], others: Sequence[Turn], name: str) -> Row:
    """Make a row, in which a measurement is as many reads as are under way at once."""
    samples = Samples(times_ns=_times(case, turns))
    samples.cpu_ns = sum(round(turn.cpu_s / turn.operations * case.batch * _GIGA) for turn in turns)
    floor = None
    if case.dst == "host":
        floor, samples.floor_ns = name, _times(case, others)
    else:
        samples.beside, samples.beside_ns = name, _times(case, others)
    row = samples.row(case, operations=case.batch, floor=floor)
    row.cpu_s_per_gb = _cpu(case, turns)
    if others:
        ratios = [own.rate / other.rate for own, other in zip(turns, others, strict=True)]
        row.of_other = round(percentile(ratios, 0.5), 4)
        row.other_cpu_s_per_gb = _cpu(case, others)
    return row


def _times(case: Case, turns: Sequence[Turn]) -> list[int]:
    return [round(case.batch / turn.rate * _GIGA) for turn in turns]


def _cpu(case: Case, turns: Sequence[Turn]) -> float:
    """Return the median of processor seconds for 10^9 bytes."""
    return round(percentile([turn.cpu_s / (turn.operations * case.bytes) * _GIGA for turn in turns], 0.5), 4)
