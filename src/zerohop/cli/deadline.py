"""One deadline for a whole command, so that no step can wait longer than what is left."""

from __future__ import annotations

import time


class Deadline:
    """A point in time after which `left` raises."""

    __slots__ = ("_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        """Sets the end `seconds` from now."""
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Returns the seconds left, above 0.

        Raises:
            TimeoutError: none is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not finished within {self._seconds:g} s (--timeout gives it longer)")
        return left
