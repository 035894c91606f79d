"""Computes the bytes that a floor must have delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from zerohop.cli.payload import Octets

Pages: TypeAlias = NDArray[np.int64]


class FloorBroken(RuntimeError):
    """Raised if a floor delivered wrong bytes: this machine, or the measurement, is not to be trusted."""


def placed(source: Octets, here: Pages, there: Pages, page_bytes: int) -> Octets:
    """Return the content of a zeroed buffer after pages `here` of `source` were written, in order, to pages `there`."""
    target = np.zeros_like(source)
    pages = target[: source.size // page_bytes * page_bytes].reshape(-1, page_bytes)
    origin = source[: source.size // page_bytes * page_bytes].reshape(-1, page_bytes)
    pages[there] = origin[here]  # numpy keeps the last of several values for one index
    return target
