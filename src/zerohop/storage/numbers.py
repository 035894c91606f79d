"""Checks the numbers that calls of this face take, its own and those of a server's clients: offsets and lengths."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from zerohop.config.checks import as_int, check_int
from zerohop.shown import shown

# The largest offset that a file may have.
MOST_BYTES: Final = (1 << 63) - 1
_INT64: Final = 1 << 63
_SECOND_NS: Final = 10**9
_PAIR: Final = 2


def byte_number(name: str, value: Any) -> int:
    """Return an offset or a length in bytes, which errors call ``name``.

    Raises:
        TypeError: it is no integer; True and False are none.
        ValueError: no file has such an offset.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    number = as_int(name, value)
    if not 0 <= number <= MOST_BYTES:
        raise ValueError(f"{name} must be from 0 to 2**63 - 1, not {shown(number)}")
    return number


def count_number(name: str, value: Any, least: int, most: int) -> int:
    """Return a number within its limits, both included, as an int; numpy's integers are taken, too.

    Raises:
        TypeError: it is no integer; True and False are none.
        ValueError: it is out of range.
    """
    return check_int(name, int(value) if isinstance(value, np.integer) else value, least, most)


def userdata_number(value: Any) -> int:
    """Return a number that comes back with a result, in 64 bits; raise as ``count_number``."""
    return count_number("userdata", value, -_INT64, _INT64 - 1)


def times_in_ns(times: Any, ns: Any) -> tuple[int, ...]:
    """Return the nanoseconds of two times, which are given in seconds or nanoseconds as for ``os.utime``; () for now.

    Raises:
        TypeError: it is no pair, or not of numbers.
        ValueError: both are given, or a time is not finite, or 64 bits do not hold it.
    """
    if times is not None and ns is not None:
        raise ValueError("give times= in seconds or ns= in nanoseconds, not both")
    if times is None and ns is None:
        return ()
    name, pair, kinds = ("times", times, (int, float)) if ns is None else ("ns", ns, (int,))
    if not isinstance(pair, tuple) or len(pair) != _PAIR:
        raise TypeError(f"{name} must be a tuple of two numbers, or None, not {shown(pair)}")
    found = []
    for value in pair:
        number: Any = value.item() if isinstance(value, np.number) else value
        if isinstance(number, bool) or not isinstance(number, kinds):
            raise TypeError(f"{name} must have {'ints' if ns is not None else 'numbers'}, not {type(value).__name__}")
        if not math.isfinite(number):
            raise ValueError(f"{name} must have finite numbers, not {shown(value)}")
        if ns is None:  # as os.utime does: the part of a second by itself, which would not fit into a float otherwise
            whole = math.floor(number)
            number = whole * _SECOND_NS + math.floor((number - whole) * _SECOND_NS)
        if not -_INT64 <= number < _INT64:
            raise ValueError(f"{name} must be within 292 years of 1970, not {shown(value)}")
        found.append(number)
    return tuple(found)


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
    # A sum of 64-bit numbers would wrap.
    if len(lengths) and int(lengths.max()) > MOST_BYTES // len(lengths) and sum(lengths.tolist()) > MOST_BYTES:
        raise ValueError("the ranges are 2**63 bytes or more together: pass fewer")
