"""Checks rights and lengths of memory."""

from __future__ import annotations

from typing import Final, Literal

from zerohop.config.checks import as_int
from zerohop.shown import shown

Rights = Literal["r", "w", "rw"]
RIGHTS: Final[dict[str, int]] = {"r": 1, "w": 2, "rw": 3}


def rights_bits(rights: object) -> int:
    """Return the bits of "r", "w" or "rw"; raise ValueError for anything else."""
    bits = RIGHTS.get(rights) if isinstance(rights, str) else None
    if bits is None:
        raise ValueError(f'rights are "r", "w" or "rw", not {shown(rights)}')
    return bits


def length_of(nbytes: object) -> int:
    """Check the length of memory to be allocated, and return it as a plain int.

    Raises:
        TypeError: not an integer.
        ValueError: no length that memory can have.
    """
    if isinstance(nbytes, bool):
        raise TypeError("nbytes must be an int, not bool")
    number = as_int("nbytes", nbytes)
    if not 0 < number < 1 << 63:
        raise ValueError(f"cannot allocate {shown(number)} bytes")
    return number
