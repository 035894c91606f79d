"""Declares one deadline for a whole command, so that no step can wait longer than the time left."""

from __future__ import annotations

import time


class Deadline:
    """Holds a point in time after which `left` raises."""

    __slots__ = ("_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        """Set the end `seconds` from now."""
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, above 0.

        Raises:
            TimeoutError: no time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not finished within {self._seconds:g} s (--timeout gives it longer)")
        return left
