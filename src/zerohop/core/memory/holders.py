"""Finds whose memory an array or a buffer shows, and may move, through all that may lie between them.

That is a tensor of PyTorch, or an object of ctypes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import BlockWatch
from zerohop.core.memory import torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

# Views are not stacked so deep; objects of ctypes may keep any number of others.
_MOST: Final = 256
# The class that all data of ctypes have; ctypes has no public name for it.
_CTYPES_DATA: Final[Any] = ctypes.c_int.__mro__[-2]
# The address of its memory is among the first words of such an object, behind those that all objects have.
_CTYPES_WORDS: Final = 4


def block_behind(holder: object, address: int, nbytes: int) -> tuple[Any, BlockWatch | None] | None:
    """Return the object whose memory a range lies in, to be kept, and what tells when it moves; None if none may move.

    Raises:
        ValueError: the tensor has other memory by now, and nobody keeps the range's.
    """
    left, seen = [holder], 0
    only = True  # nothing between the holder and the tensor keeps more than one object
    refusal: ValueError | None = None
    owner: Any = None
    while left and seen < _MOST:
        each = left.pop()
        seen += 1
        if torch_tensors.is_tensor(each):
            try:
                storage = torch_tensors.storage_behind(each, address, nbytes)
                return storage, torch_tensors.watch(storage)
            except ValueError as error:
                refusal = error
            continue
        if isinstance(each, _CTYPES_DATA) and each._b_needsfree_ and each._b_base_ is None:
            owner = each
        found = list(_held_by(each))
        only = only and len(found) <= 1
        left += found
    if refusal is not None and only:
        raise refusal
    return None if owner is None or not nbytes else (owner, _watch_ctypes(owner))


def _watch_ctypes(owner: Any) -> BlockWatch:
    """Return what tells when ``ctypes.resize()`` gives an object other memory: the object has the address as a word."""
    start = ctypes.addressof(owner)
    words = list((ctypes.c_uint64 * _CTYPES_WORDS).from_address(id(owner)))
    return BlockWatch(id(owner) + ctypes.sizeof(ctypes.c_uint64) * words.index(start), start)


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
