"""Finds free ranges in one stretch of memory."""

from __future__ import annotations

import bisect


class FreeRanges:
    """Allocates by best fit: it cuts the smallest range that is long enough, and merges neighbours. Not thread-safe.

    Attributes:
        nbytes: length of the stretch.
        free: bytes that are free.
    """

    __slots__ = ("_ends", "_lengths", "_sizes", "free", "nbytes")

    def __init__(self, nbytes: int, *, free: bool = True) -> None:
        self.nbytes, self.free = nbytes, nbytes if free else 0
        # The free ranges by start, by end, and sorted by length.
        self._lengths = {0: nbytes} if free else {}
        self._ends = {nbytes: 0} if free else {}
        self._sizes = [(nbytes, 0)] if free else []

    @property
    def largest(self) -> int:
        """Return the length of the longest free range."""
        return self._sizes[-1][0] if self._sizes else 0

    def take(self, nbytes: int) -> int | None:
        """Take a range of this length; return its start, or None if no free range is long enough."""
        position = bisect.bisect_left(self._sizes, (nbytes, 0))
        if position == len(self._sizes):
            return None
        length, start = self._sizes[position]
        self._remove(start, length)
        if length > nbytes:
            self._add(start + nbytes, length - nbytes)
        self.free -= nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Free a range that was taken."""
        self.free += nbytes
        before = self._ends.get(start)
        if before is not None:
            length = start - before
            self._remove(before, length)
            start, nbytes = before, nbytes + length
        after = self._lengths.get(start + nbytes)
        if after is not None:
            self._remove(start + nbytes, after)
            nbytes += after
        self._add(start, nbytes)

    def _add(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._ends[start + length] = start
        bisect.insort(self._sizes, (length, start))

    def _remove(self, start: int, length: int) -> None:
        del self._lengths[start], self._ends[start + length]
        del self._sizes[bisect.bisect_left(self._sizes, (length, start))]
