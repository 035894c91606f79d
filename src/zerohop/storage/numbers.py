"""Checks the numbers that calls of this face take: offsets and lengths in bytes."""

from __future__ import annotations

import operator
from typing import Any, Final

from zerohop.shown import shown

# The largest offset that a file may have.
MOST_BYTES: Final = (1 << 63) - 1


def byte_number(name: str, value: Any) -> int:
    """Return an offset or a length in bytes, which errors call ``name``.

    Raises:
        TypeError: it is no integer; True and False are none.
        ValueError: no file has such an offset.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if not 0 <= number <= MOST_BYTES:
        raise ValueError(f"{name} must be from 0 to 2**63 - 1, not {shown(number)}")
    return number
