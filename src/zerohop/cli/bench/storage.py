"""Measures the rows about files: reads through a Ring into an Iov, taking turns with fio, host memory or threads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.block_file import NoFile, block_file, file_system
from zerohop.cli.bench.block_reader import BlockReader
from zerohop.cli.bench.fio import Fio, FioFails, Turn
from zerohop.cli.bench.gpu_readers import GpuReaders
from zerohop.cli.bench.rows import Row, Samples, percentile
from zerohop.cli.bench.session import TIMEOUT
from zerohop.cli.bench.storage_plan import CACHED, DISK, IN_ORDER, TMPFS
from zerohop.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zerohop.cli.bench.rows import Case
    from zerohop.cli.bench.session import Effort

SHARED_MEMORY: Final = "/dev/shm"
_GIGA: Final = 1e9


def measure_storage(effort: Effort, case: Case) -> Row:
    """Read blocks of a new file, past the page cache if it is on a disk, in turn with another way to do that.

    The other way is fio on the same file, or for a device's memory the same reads into host memory. Verified: the whole
    file, read once in this way, and after each turn what the memory has then.
    """
    on_disk = case.form != TMPFS
    folder = effort.folder if on_disk else SHARED_MEMORY
    try:
        with block_file(folder, max(effort.file_bytes, case.memory_bytes), on_disk=on_disk) as path:
            return _measure(effort, case, path)
    except NoFile as error:
        return replace(Row.of(case), verified=True, missing=str(error))


def _measure(effort: Effort, case: Case, path: Path) -> Row:
    direct = case.form == DISK
    with ExitStack() as opened:
        store = opened.enter_context(open_store(path.parent, sim_devices=case.sim_devices))
        file = opened.enter_context(store.open(path.name, direct=direct).result(TIMEOUT))
        readers: list[BlockReader | GpuReaders] = [BlockReader(store, file, case, device_of(case))]
        if case.form == CACHED:
            readers.append(GpuReaders(path, case))
        elif case.dst != "host":
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
    effort: Effort, case: Case, path: Path, readers: Sequence[BlockReader | GpuReaders]
) -> tuple[list[Turn], list[Turn], str]:
    """Return the turns of the first reader, those that others took between them, and what these others are."""
    fio, turns, others = Fio(), [], []
    name = readers[1].name if len(readers) > 1 else fio.name
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
    samples = Samples(times_ns=times_of(case, turns))
    samples.cpu_ns = sum(round(turn.cpu_s / turn.operations * case.batch * _GIGA) for turn in turns)
    floor = None
    if case.dst == "host" or case.form == CACHED:
        floor, samples.floor_ns = name, times_of(case, others)
    else:
        samples.beside, samples.beside_ns = name, times_of(case, others)
    row = samples.row(case, operations=case.batch, floor=floor)
    row.cpu_s_per_gb = cpu_of(case, turns)
    if others:
        ratios = [own.rate / other.rate for own, other in zip(turns, others, strict=True)]
        row.of_other = round(percentile(ratios, 0.5), 4)
        row.other_cpu_s_per_gb = cpu_of(case, others)
    return row


def device_of(case: Case) -> str:
    """Return the device whose memory is read into."""
    assert case.dst is not None
    return "sim:0" if case.dst == "sim" else case.dst


def times_of(case: Case, turns: Sequence[Turn]) -> list[int]:
    """Return, for each turn, the nanoseconds of as many reads as are under way at once."""
    return [round(case.batch / turn.rate * _GIGA) for turn in turns]


def cpu_of(case: Case, turns: Sequence[Turn]) -> float:
    """Return the median of processor seconds for 10^9 bytes."""
    return round(percentile([turn.cpu_s / (turn.operations * case.bytes) * _GIGA for turn in turns], 0.5), 4)
