"""Finds GPUs by number."""

from __future__ import annotations

import errno
from typing import Final

from zerohop.compat.process import shared_context
from zerohop.config.checks import check_int
from zerohop.errors import StorageError

_KINDS: Final = ("cuda", "hip", "sim")


def names() -> list[str]:
    """Return the names of the GPUs in the order of their numbers; simulated ones where there are no others."""
    devices = shared_context().devices
    return next((found for kind in _KINDS if (found := [each.name for each in devices if each.kind == kind])), [])


def name_of(number: int) -> str:
    """Return the name of a GPU.

    Raises:
        TypeError: the number is no integer.
        StorageError: ENODEV: there is no such GPU.
    """
    known = names()
    if not 0 <= check_int("a GPU's number", number, -(2**31), 2**31 - 1) < len(known):
        raise StorageError(
            f"there is no GPU {number}; there are {', '.join(known) or 'none'}",
            errno=errno.ENODEV,
            fix="zerohop doctor shows what keeps a GPU from being used; ZEROHOP_SIM_DEVICES=2 simulates some",
            operation="gpu",
        )
    return known[number]
