"""Declares Scratch, the memory in which collectives receive what they then reduce or pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Memory, View

# Bytes that a group keeps at least, once it needs some, and at most.
_LEAST: Final = 64 << 10
_MOST: Final = 8 << 20
_ALIGNMENT: Final = 64


class Scratch:
    """Keeps host memory for the collectives of a group, which use it one after the other.

    Attributes:
        view_of: registers an array.
    """

    def __init__(self, view_of: Callable[[Local], Memory | View]) -> None:
        self.view_of = view_of
        self._array: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        self._view: Memory | View | None = None
        self._used = 0

    def take(self, nbytes: int) -> tuple[np.ndarray[Any, Any], View]:
        """Return memory that is not in use, as bytes and as what messages take. It is good until ``free``."""
        start = self._used
        if self._view is None or self._array.nbytes < start + nbytes:
            # Parts that were taken before keep the memory that they are in.
            start = 0
            self._array = np.empty(max(nbytes, _LEAST), np.uint8)
            self._view = self.view_of(self._array)
        self._used = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._array[start : start + nbytes], self._view[start : start + nbytes]

    def free(self, *, all_of_it: bool = False) -> None:
        """Take back what was taken, and keep it for later unless it is much."""
        self._used = 0
        if all_of_it or self._array.nbytes > _MOST:
            self._array, self._view = np.empty(0, np.uint8), None
