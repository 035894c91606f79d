"""Shows in an error what a caller gave, however long it is."""

from __future__ import annotations

import reprlib
from typing import Final

_LONGEST: Final = 200
_MOST: Final = 32
_MOST_BITS: Final = 512


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = _LONGEST
        self.maxtuple = self.maxlist = _MOST

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write a number of more than 4300 digits, and nobody reads one of hundreds.
        return super().repr_int(x, level) if x.bit_length() < _MOST_BITS else f"an int of {x.bit_length()} bits"


_SHORTENED: Final = _Shortened()


def shown(value: object) -> str:
    """Return ``repr(value)``, cut short if it is long; what raises an error in ``repr`` is named by its type."""
    return _SHORTENED.repr(value)
