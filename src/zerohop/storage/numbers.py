"""Checks the numbers that calls of this face take, its own and those of a server's clients: offsets and lengths."""

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


def check_ranges(offsets: Any, at: Any, lengths: Any, nbytes: int, userdata: Any = None) -> None:
    """Raise ValueError unless all ranges lie within ``nbytes`` of memory, and files may have them."""
    if not len(offsets) == len(at) == len(lengths):
        raise ValueError(
            f"the arrays have different lengths: {len(offsets)} offsets, {len(lengths)} lengths, {len(at)} offsets in "
            "the memory"
        )
    if userdata is not None and len(userdata) != len(lengths):
        raise ValueError(f"the arrays have different lengths: {len(lengths)} lengths, and userdata of {len(userdata)}")
    if bool(((lengths < 0) | (lengths > nbytes) | (at < 0) | (at > nbytes - lengths)).any()):
        raise ValueError(f"a range does not lie within the {nbytes} bytes of the memory")
    if bool(((offsets < 0) | (offsets > MOST_BYTES - lengths)).any()):
        raise ValueError("an offset in the file is negative, or too large")
