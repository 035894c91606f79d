"""Decides, before anything is read, which bytes are read together, and which go straight into their tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zerohop.integrations.safetensors.selection import Part

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

# Bytes from which a tensor is worth a registration of its own, and a run is worth a read of its own. Below, a copy of
# the processor costs less.
DIRECT_TENSOR: Final = 1 << 20
_DIRECT_RUN: Final = 64 << 10
# What lies between two runs is read along if it is no longer: a disk takes about as long for it.
_JOIN: Final = 16 << 10
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


def plan(wanted: list[Wanted], slot: int) -> list[Read]:
    """Return the reads that fill all tensors, in the order of the bytes in the files.

    Args:
        wanted: what each tensor is to hold.
        slot: the most bytes that a read may bring to memory that is not a tensor's.
    """
    reads: list[Read] = []
    joined: list[tuple[int, Wanted]] = []
    for number, each in enumerate(wanted):
        if not each.nbytes:
            continue
        if each.nbytes >= min(DIRECT_TENSOR, slot) and each.part.run >= min(_DIRECT_RUN, slot):
            reads += _direct(number, each)
        else:
            joined.append((number, each))
    reads += _joined(joined, slot)
    reads.sort(key=lambda read: (read.file, int(read.offsets[0])))
    return reads


def _direct(number: int, wanted: Wanted) -> Iterator[Read]:
    """Split what one tensor takes into pieces."""
    starts, run = wanted.part.starts + wanted.offset, wanted.part.run
    if run > _PIECE:
        for which, start in enumerate(starts.tolist()):
            for at in range(0, run, _PIECE):
                length = min(_PIECE, run - at)
                yield Read(wanted.file, _one(start + at), _one(which * run + at), _one(length), number)
        return
    # Runs that follow each other in the file are one range.
    together = min(_PIECE // run, _MOST_RANGES)
    into = np.arange(starts.size, dtype=np.int64) * run
    for first in range(0, starts.size, together):
        chosen = slice(first, first + together)
        yield Read(wanted.file, starts[chosen], into[chosen], np.full(starts[chosen].size, run, np.int64), number)


def _joined(wanted: Iterable[tuple[int, Wanted]], slot: int) -> Iterator[Read]:
    """Gather what is small into reads of at most ``slot`` bytes, each of one file."""
    batch: _Batch | None = None
    for number, each in sorted(wanted, key=lambda one: (one[1].file, one[1].offset)):
        if batch is not None and batch.file != each.file:
            yield batch.read()
            batch = None
        for start, at, run in _pieces(each, slot):
            if batch is None or not batch.add(start, number, at, run):
                if batch is not None:
                    yield batch.read()
                batch = _Batch(each.file, slot)
                added = batch.add(start, number, at, run)
                assert added
    if batch is not None:
        yield batch.read()


def _pieces(wanted: Wanted, slot: int) -> Iterator[tuple[int, int, int]]:
    """Give the runs of a tensor, each cut into pieces that fit: offset in the file, in the tensor, length."""
    run = wanted.part.run
    for which, start in enumerate(wanted.part.starts.tolist()):
        for at in range(0, run, slot):
            yield wanted.offset + start + at, which * run + at, min(slot, run - at)


class _Batch:
    """Gathers runs, in the order of their offsets in the file, into ranges and copies."""

    def __init__(self, file: int, slot: int) -> None:
        self.file = file
        self._slot = slot
        self._ranges: list[list[int]] = []  # offset in the file, offset in the slot, length
        self._copies: list[Copy] = []
        self._filled = 0

    def add(self, start: int, tensor: int, at: int, run: int) -> bool:
        """Add a run of a tensor; False, and nothing is done, if the slot has no room for it."""
        last = self._ranges[-1] if self._ranges else None
        gap = start - (last[0] + last[2]) if last is not None else -1
        joins = 0 <= gap <= _JOIN
        if self._filled + run + (gap if joins else 0) > self._slot or len(self._ranges) >= _MOST_RANGES:
            return False
        if last is not None and joins:
            last[2] += gap + run
            self._filled += gap
        else:
            self._ranges.append([start, self._filled, run])
        self._copy(Copy(tensor, at, self._filled, run, 1, run))
        self._filled += run
        return True

    def read(self) -> Read:
        """Return what was gathered."""
        offsets, into, lengths = np.array(self._ranges, np.int64).T
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
