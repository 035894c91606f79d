"""Finds the tensor whose memory an array or a buffer shows, through all that may lie between them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.core.memory import torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

# Views are not stacked so deep; objects of ctypes may keep any number of others.
_MOST: Final = 256
# The class that all data of ctypes have; ctypes has no public name for it.
_CTYPES_DATA: Final[Any] = ctypes.c_int.__mro__[-2]


def storage_behind(holder: object, address: int, nbytes: int) -> Any | None:
    """Return the storage of the tensor whose memory a range lies in; None if no tensor is behind ``holder``.

    Raises:
        ValueError: the tensor has other memory by now, and nobody keeps the range's.
    """
    left, seen = [holder], 0
    only = True  # nothing between the holder and the tensor keeps more than one object
    refusal: ValueError | None = None
    while left and seen < _MOST:
        each = left.pop()
        seen += 1
        if torch_tensors.is_tensor(each):
            try:
                return torch_tensors.storage_behind(each, address, nbytes)
            except ValueError as error:
                refusal = error
            continue
        found = list(_held_by(each))
        only = only and len(found) <= 1
        left += found
    if refusal is not None and only:
        raise refusal
    return None


def _held_by(holder: Any) -> Iterator[object]:
    """Give the objects whose memory one may show."""
    if isinstance(holder, np.ndarray):
        yield holder.base
    elif isinstance(holder, memoryview):
        yield holder.obj
    elif isinstance(holder, _CTYPES_DATA):
        # NumPy keeps an array by the last of these, in a pointer that its `ctypes.data_as` has made.
        kept = (holder._b_base_, holder._objects, getattr(holder, "_arr", None))
        yield from (each for each in kept if each is not None)
    elif isinstance(holder, dict):  # what an object of ctypes keeps
        yield from holder.values()
    elif "__array_interface__" in getattr(holder, "__dict__", ()):  # NumPy's as_strided puts one between two arrays
        # Objects of other classes have it as a property, whose getter may copy all bytes.
        yield getattr(holder, "base", None)
