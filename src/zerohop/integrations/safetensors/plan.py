"""Decides, before anything is read, which bytes are read together, and which go straight into their tensor."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zerohop.integrations.safetensors.selection import Part

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

# Bytes from which a tensor is worth a registration of its own, and a run is worth a read of its own. Below, a copy of
# the processor costs less.
DIRECT_TENSOR: Final = 1 << 20
_DIRECT_RUN: Final = 64 << 10
# Bytes between two runs are read along if they are no more: a disk takes about as long for it.
_JOIN: Final = 16 << 10
# Reads past the page cache begin and end at multiples of this, in the file and in memory.
PAGE: Final = 4096
# A piece of a tensor that is read as one operation.
_PIECE: Final = 16 << 20
_MOST_RANGES: Final = 4096


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names a part of a tensor, and the file and the offset of the tensor's first byte in it."""

    file: int
    offset: int
    part: Part

    @property
    def nbytes(self) -> int:
        """Return the length of the part."""
        return self.part.starts.size * self.part.run


@dataclass(frozen=True, slots=True)
class Read:
    """Describes one operation: ranges of one file that are read to places in memory.

    Attributes:
        file: number of the file.
        offsets: offsets in the file.
        into: offsets in the memory: of the tensor, or of a slot.
        lengths: lengths in bytes.
        tensor: number of the tensor that they go straight into; None: they go into a slot.
        copies: what of the slot goes where afterwards.
    """

    file: int
    offsets: Numbers
    into: Numbers
    lengths: Numbers
    tensor: int | None = None
    copies: tuple[Copy, ...] = ()

    @property
    def nbytes(self) -> int:
        """Return the bytes that are read."""
        return int(self.lengths.sum())

    @property
    def room(self) -> int:
        """Return the bytes of memory from the first place to the last one's end."""
        return int((self.into + self.lengths).max())


@dataclass(frozen=True, slots=True)
class Copy:
    """Describes runs of one length that go from a slot to a tensor, where they lie one after the other.

    Attributes:
        tensor: number of the tensor.
        at: offset there of the first.
        source: offset in the slot of the first.
        step: bytes from one to the next in the slot.
        count: how many.
        run: length of each.
    """

    tensor: int
    at: int
    source: int
    step: int
    count: int
    run: int


def goes_straight(part: Part, slot: int) -> bool:
    """Tell whether the bytes of a part are read into the tensor's own memory, with slots of so many bytes."""
    nbytes = part.starts.size * part.run
    return nbytes >= min(DIRECT_TENSOR, slot) and part.run >= min(_DIRECT_RUN, slot)


def plan(wanted: list[Wanted], sizes: list[int], slot: int) -> list[Read]:
    """Return the reads that fill all tensors, in the order of the bytes in the files.

    Of a tensor that is one run, whole pages of the file go straight into it. The rest of the page before and of the one
    after is read with what else of these pages is wanted.

    Args:
        wanted: what each tensor is to hold.
        sizes: length of each file.
        slot: the most bytes that a read may bring to memory that is not a tensor's; a multiple of PAGE.
    """
    reads: list[Read] = []
    # By the place of their first bytes: tensors do not interleave, and millions of runs at once would take much memory.
    joined: list[tuple[int, int, Iterable[_Run]]] = []
    for number, each in enumerate(wanted):
        if not each.nbytes:
            continue
        if not goes_straight(each.part, slot):
            joined.append((each.file, each.offset + int(each.part.starts[0]), _runs(number, each, slot)))
        elif each.part.starts.size > 1:
            reads += _direct_runs(number, each)
        else:
            start = each.offset + int(each.part.starts[0])
            first, last = -(-start // PAGE) * PAGE, (start + each.part.run) // PAGE * PAGE
            end = start + each.part.run
            joined.append(
                (each.file, start, [_Run(each.file, start, number, 0, first - start)] if first > start else [])
            )
            joined.append(
                (each.file, last, [_Run(each.file, last, number, last - start, end - last)] if end > last else [])
            )
            for at in range(first, last, _PIECE):
                length = min(_PIECE, last - at)
                reads.append(Read(each.file, _one(at), _one(at - start), _one(length), number))
    joined.sort(key=lambda each: each[:2])
    reads += _joined(itertools.chain.from_iterable(runs for _, _, runs in joined), sizes, slot)
    reads.sort(key=lambda read: (read.file, int(read.offsets[0])))
    return reads


class _Run(NamedTuple):
    """Names bytes of a file that go to a tensor by way of a slot."""

    file: int
    start: int
    tensor: int
    at: int
    nbytes: int


def _direct_runs(number: int, wanted: Wanted) -> Iterator[Read]:
    """Split the runs of one tensor into operations."""
    starts, run = wanted.part.starts + wanted.offset, wanted.part.run
    if run > _PIECE:
        for which, start in enumerate(starts.tolist()):
            for at in range(0, run, _PIECE):
                length = min(_PIECE, run - at)
                yield Read(wanted.file, _one(start + at), _one(which * run + at), _one(length), number)
        return
    together = min(_PIECE // run, _MOST_RANGES)
    into = np.arange(starts.size, dtype=np.int64) * run
    for first in range(0, starts.size, together):
        chosen = slice(first, first + together)
        yield Read(wanted.file, starts[chosen], into[chosen], np.full(starts[chosen].size, run, np.int64), number)


def _runs(number: int, wanted: Wanted, slot: int) -> Iterator[_Run]:
    """Give the runs of a tensor, each cut into pieces that fit into a slot, whole pages of the file around them."""
    run, most = wanted.part.run, slot - 2 * PAGE
    for which, start in enumerate(wanted.part.starts.tolist()):
        for at in range(0, run, most):
            yield _Run(wanted.file, wanted.offset + start + at, number, which * run + at, min(most, run - at))


def _joined(runs: Iterable[_Run], sizes: list[int], slot: int) -> Iterator[Read]:
    """Gather runs, in the order of their bytes, into reads of at most ``slot`` bytes, each of one file."""
    batch: _Batch | None = None
    for run in runs:
        if batch is not None and batch.file == run.file and batch.add(run):
            continue
        if batch is not None:
            yield batch.read(sizes[batch.file])
        batch = _Batch(run.file, slot)
        added = batch.add(run)
        assert added
    if batch is not None:
        yield batch.read(sizes[batch.file])


class _Batch:
    """Gathers runs, in the order of their offsets in the file, into ranges of whole pages, and copies."""

    def __init__(self, file: int, slot: int) -> None:
        self.file = file
        self._slot = slot
        self._ranges: list[list[int]] = []  # offset in the file, offset in the slot, length; of whole pages
        self._copies: list[Copy] = []

    def add(self, run: _Run) -> bool:
        """Add a run; False, and nothing is done, if the slot has no room for it."""
        first, end = run.start // PAGE * PAGE, -(-(run.start + run.nbytes) // PAGE) * PAGE
        last = self._ranges[-1] if self._ranges else None
        if last is not None and first <= last[0] + last[2] + _JOIN:
            offset, place, length = last
            new = [offset, place, max(length, end - offset)]
        else:
            new = [first, last[1] + last[2] if last is not None else 0, end - first]
        joins = last is not None and new[1] == last[1]
        if new[1] + new[2] > self._slot or (not joins and len(self._ranges) >= _MOST_RANGES):
            return False
        self._ranges[len(self._ranges) - joins :] = [new]
        self._copy(Copy(run.tensor, run.at, new[1] + run.start - new[0], run.nbytes, 1, run.nbytes))
        return True

    def read(self, size: int) -> Read:
        """Return what was gathered, of a file of so many bytes."""
        offsets, into, lengths = np.array(self._ranges, np.int64).T.copy()
        np.minimum(lengths, size - offsets, out=lengths)
        return Read(self.file, offsets, into, lengths, None, tuple(self._copies))

    def _copy(self, new: Copy) -> None:
        """Add a copy; one that goes on where the last one ends, at an equal distance, lengthens it."""
        last = self._copies[-1] if self._copies else None
        if last is not None and last.tensor == new.tensor and last.run == new.run:
            step = new.source - (last.source + (last.count - 1) * last.step)
            if last.at + last.count * last.run == new.at and (last.count == 1 or step == last.step):
                self._copies[-1] = Copy(last.tensor, last.at, last.source, step, last.count + 1, last.run)
                return
        self._copies.append(new)


def _one(number: int) -> Numbers:
    return np.array([number], np.int64)
