"""Cuts ranges into pieces that a server carries out together, and joins the results of pieces to those of ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop.storage.completion import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Numbers of 64 bits.
    Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Pieces(NamedTuple):
    """Holds parts of ranges.

    Attributes:
        ranges: the number of the range that each is a part of.
        starts: offset in the range.
        offsets: offset in the file.
        at: offset in the memory.
        lengths: length.
    """

    ranges: Numbers
    starts: Numbers
    offsets: Numbers
    at: Numbers
    lengths: Numbers


def chosen(pieces: Pieces, which: np.ndarray[Any, Any] | slice) -> Pieces:
    """Return some of the pieces, by a mask or by their positions."""
    return Pieces(*(each[which] for each in pieces))


def cut(
    offsets: Numbers, at: Numbers, lengths: Numbers, most_bytes: int, has_ended: Callable[[int], bool]
) -> Iterator[Pieces]:
    """Yield all parts of ranges in order, each time as many as have ``most_bytes`` together.

    The rest of a range is left out once ``has_ended`` says so of its number: a client may ask for 2**62 bytes of a
    file that has four thousand.
    """
    ends = np.cumsum(lengths)
    long = np.flatnonzero(lengths > most_bytes)
    first = 0
    while first < len(lengths):
        if lengths[first] > most_bytes:  # it goes by itself, in several parts
            for start in range(0, int(lengths[first]), most_bytes):
                if has_ended(first):
                    break
                size = min(most_bytes, int(lengths[first]) - start)
                one = slice(first, first + 1)
                yield Pieces(
                    np.array([first]), np.array([start]), offsets[one] + start, at[one] + start, np.array([size])
                )
            first += 1
            continue
        before = ends[first] - lengths[first]
        last = int(np.searchsorted(ends, before + most_bytes, side="right"))
        later = long[np.searchsorted(long, first) :]
        last = min(last, int(later[0])) if later.size else last
        some = slice(first, last)
        zeros = np.zeros(last - first, np.int64)
        yield Pieces(np.arange(first, last), zeros, offsets[some], at[some], lengths[some])
        first = last


def joined(here: Numbers, there: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the ranges that are not empty, with those joined that follow each other at both ends."""
    some = lengths > 0
    here, there, lengths = here[some], there[some], lengths[some]
    if not lengths.size:
        return here, there, lengths
    follows = (here[1:] == here[:-1] + lengths[:-1]) & (there[1:] == there[:-1] + lengths[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    return here[firsts], there[firsts], np.add.reduceat(lengths, firsts)


class Results:
    """Joins the results of pieces: a range ends where its first piece does that is short or has failed.

    Attributes:
        done: for each range the bytes that were moved from its start on.
        errors: for each range the errno with which it failed; 0: none.
        outcomes: for each range status and reason.
    """

    def __init__(self, lengths: Numbers) -> None:
        self._lengths = lengths
        self.done = lengths.copy()
        self.errors = np.zeros(len(lengths), np.int32)
        self.outcomes = np.zeros((len(lengths), 2), np.uint8)

    def note(self, pieces: Pieces, records: np.ndarray[Any, Any]) -> None:
        """Take in how pieces have ended, as records (completion.py) in the order of the pieces."""
        for i in np.flatnonzero((records["done"] != pieces.lengths) | (records["status"] != 0)):
            number, record = int(pieces.ranges[i]), records[i]
            end = int(pieces.starts[i]) + int(record["done"])
            if end > self.done[number] or (end == self.done[number] and self.outcomes[number, 0]):
                continue
            self.done[number] = end
            self.errors[number] = max(0, -int(record["result"]))
            self.outcomes[number] = record["status"], record["reason"]

    def fail_all(self, pieces: Pieces, status: int, reason: int = 0) -> None:
        """Note that pieces have failed alike, with nothing moved."""
        records = np.zeros(len(pieces.ranges), RECORD)
        records["status"], records["reason"] = status, reason
        self.note(pieces, records)

    def fail_rest(self, pieces: Pieces, status: int) -> None:
        """Note that these pieces, and all that come after them, have failed alike, with nothing moved."""
        ranges = np.arange(int(pieces.ranges[0]), len(self._lengths))
        starts = np.zeros_like(ranges)
        starts[0] = pieces.starts[0]
        lengths = self._lengths[ranges] - starts
        self.fail_all(Pieces(ranges, starts, starts, starts, lengths), status)

    def has_ended(self, number: int) -> bool:
        """Tell whether a range has come to an end before its last byte."""
        return bool(self.done[number] < self._lengths[number])

    @property
    def failed(self) -> bool:
        """Tell whether a range has failed."""
        return bool(self.outcomes.any())

    @property
    def whole(self) -> bool:
        """Tell whether all ranges have moved in full."""
        return bool((self.done == self._lengths).all())
