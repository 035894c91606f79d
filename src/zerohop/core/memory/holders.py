"""Finds whose memory an array or a buffer shows, and may move, through all that may lie between them.

That is a tensor of PyTorch, or an object of ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop._native import BlockWatch
from zerohop.core.memory import torch_tensors
from zerohop.core.memory.source import Moved

if TYPE_CHECKING:
    from collections.abc import Iterator

# The class that all data of ctypes have; ctypes has no public name for it, nor for that of its pointers.
_CTYPES_DATA: Final[Any] = ctypes.c_int.__mro__[-2]
_CTYPES_POINTER: Final[Any] = ctypes.POINTER(ctypes.c_int).__mro__[-3]
# Address and length of its memory are among the first words of such an object, behind those that all objects have.
_CTYPES_WORDS: Final = 8
# A length that no other word of such an object has.
_PROBE_BYTES: Final = 0x12345


def block_behind(
    holder: object, address: int, nbytes: int, arrays: list[weakref.ref[Any]]
) -> tuple[Any, BlockWatch | None] | None:
    """Return the object whose memory a range lies in, to be kept, and what tells when it moves; None if none may move.

    ``arrays`` gets weak references to NumPy arrays that own the memory; NumPy resizes none of them while these exist.

    Raises:
        Moved: the object that the range was part of has other memory by now, and nobody keeps the range's.
    """
    left = [_Held(holder, sure=True)]
    seen: dict[int, object] = {}  # casts of one object keep each other
    only = True  # nothing between the holder and the tensor keeps more than one object
    while left:
        each, sure = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, np.ndarray) and each.flags.owndata:
            arrays.append(weakref.ref(each))
            start = each.__array_interface__["data"][0]
            if sure and nbytes and not (start <= address and address + nbytes <= start + each.nbytes):
                raise Moved("the array that it is a view of has other memory by now. Fix: take a new view of it")
        # A pointer's own memory has an address in it, and the range may lie anywhere.
        sure = sure and not isinstance(each, _CTYPES_POINTER)
        is_tensor = torch_tensors.is_tensor(each)
        if is_tensor or owns_memory(each):
            kept, block = torch_tensors.storage_of(each) if is_tensor else (each, _watch_ctypes(each))
            if not nbytes or (block is not None and block.holds(address, nbytes)):
                return kept, block
            refusal = Moved(
                f"the {type(each).__name__} that it shows has other memory by now. Fix: take a new view of it"
            )
            if sure or (is_tensor and only) or (block is not None and block.moved):
                raise refusal
            if is_tensor:
                continue
        found = [_Held(held, sure=sure and certain) for held, certain in _held_by(each) if held is not None]
        only = only and len(found) <= 1 and not _has_interface(each, numpys=False)
        left += found
    return None


def owns_memory(x: object) -> bool:
    """Tell whether an object is one of ctypes with memory of its own."""
    return isinstance(x, _CTYPES_DATA) and bool(x._b_needsfree_) and x._b_base_ is None


class _Held(NamedTuple):
    """Holds an object that another one keeps, and whether the range must lie in its memory."""

    what: object
    sure: bool


def _watch_ctypes(owner: Any) -> BlockWatch:
    """Return what tells when ``ctypes.resize()`` gives an object other memory, or less."""
    start_word, length_word = _words()
    return BlockWatch(id(owner) + start_word, ctypes.addressof(owner), id(owner) + length_word, ctypes.sizeof(owner))


@functools.cache
def _words() -> tuple[int, int]:
    """Return where an object of ctypes has address and length of its memory, in bytes from its start."""
    probe = (ctypes.c_ubyte * _PROBE_BYTES)()
    words = list((ctypes.c_uint64 * _CTYPES_WORDS).from_address(id(probe)))
    size = ctypes.sizeof(ctypes.c_uint64)
    return size * words.index(ctypes.addressof(probe)), size * words.index(_PROBE_BYTES)


def _held_by(holder: Any) -> Iterator[tuple[object, bool]]:
    """Give the objects whose memory one may show, and whether it must be that one's."""
    if isinstance(holder, np.ndarray):
        yield holder.base, True
    elif isinstance(holder, memoryview):
        yield holder.obj, True
    elif isinstance(holder, _CTYPES_DATA):
        if holder._b_base_ is not None:
            yield holder._b_base_, True
        # An object that `from_buffer` made shows the buffer that it keeps. One that NumPy's `as_ctypes` made shows an
        # array. Pointers in an object may point to all else that it keeps.
        shows = not holder._b_needsfree_ and holder._b_base_ is None
        yield holder._objects, shows and isinstance(holder._objects, (dict, memoryview))
        yield getattr(holder, "__keep", None), shows
        yield getattr(holder, "_arr", None), False  # in a pointer that NumPy's `ctypes.data_as` has made
    elif isinstance(holder, dict):  # what an object of ctypes keeps; casts of it have the same one
        # A copy, which is made at once: another thread may set a pointer meanwhile.
        yield from ((each, isinstance(each, memoryview)) for each in list(holder.values()))
    elif _has_interface(holder, numpys=True):  # as_strided puts one between two arrays
        yield getattr(holder, "base", None), True
    elif _has_interface(holder, numpys=False):  # its `base` may be anything
        yield getattr(holder, "base", None), False


def _has_interface(holder: object, *, numpys: bool) -> bool:
    """Tell whether an object shows memory by an attribute of its own, and is one of NumPy's classes or is not."""
    # Objects of most other classes have it as a property, whose getter may copy all bytes.
    there = "__array_interface__" in getattr(holder, "__dict__", ())
    return there and type(holder).__module__.startswith("numpy.") == numpys
