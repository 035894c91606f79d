"""Describes the elements of an array that a Context allocates: their type, by NumPy's names, and the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np

from zerohop.config.checks import as_int
from zerohop.core.memory.layouts import MAX_AXES
from zerohop.shown import shown

# DLPack's codes for the kinds of NumPy's types.
_KINDS: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
# Types that NumPy lacks, with DLPack's code and their bits.
_OTHERS: Final = {"bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8)}
_BYTES: Final = "uint8"


class Elements(NamedTuple):
    """Holds the name of a type, the shape of an array, and DLPack's code for the type with its bits."""

    dtype: str
    shape: tuple[int, ...]
    code: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of the array."""
        return math.prod(self.shape) * self.bits // 8

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """Return NumPy's type; None: NumPy has none."""
        return None if self.dtype in _OTHERS else np.dtype(self.dtype)


def bytes_of(nbytes: int) -> Elements:
    """Return the Elements of memory that is mere bytes."""
    return Elements(_BYTES, (nbytes,), _KINDS["u"], 8)


def is_shape(x: object) -> TypeGuard[Sequence[Any]]:
    """Tell whether this is a sequence, as shapes are. Bytes are a sequence of ints, and no shape."""
    return isinstance(x, Sequence) and not isinstance(x, (str, bytes, bytearray, memoryview))


def elements_of(shape: int | Sequence[int], dtype: Any) -> Elements:
    """Check a shape and a type; ``dtype`` is a name, a type of NumPy's or PyTorch's, or None for bytes.

    Raises:
        TypeError: the shape is neither an int nor a sequence of them, or the type is none that arrays have.
        ValueError: a length is not positive, there are more axes than arrays have, or the type has another byte order
            than this machine.
    """
    lengths = [shape] if hasattr(type(shape), "__index__") else shape
    if not is_shape(lengths):
        raise TypeError(f"a shape is an int, or a sequence of ints, not {type(shape).__name__}")
    if len(lengths) > MAX_AXES:
        raise ValueError(f"a shape of {len(lengths)} axes: an array has {MAX_AXES} at most")
    for length in lengths:
        if isinstance(length, bool) or not hasattr(type(length), "__index__"):
            raise TypeError(f"the lengths of a shape are ints, not {type(length).__name__}")
    axes = tuple(as_int("a length of a shape", length) for length in lengths)
    name = _BYTES if dtype is None else _name_of(dtype)
    code, bits = _OTHERS.get(name) or (_KINDS[np.dtype(name).kind], 8 * np.dtype(name).itemsize)
    if min(axes, default=1) < 1 or math.prod(axes) * bits // 8 >= 1 << 63:
        raise ValueError(f"cannot allocate an array of the shape {shown(axes)}")
    return Elements(name, axes, code, bits)


def _name_of(dtype: Any) -> str:
    """Return the name of a type, as NumPy and PyTorch have it."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, str) or _is_torchs(dtype) else ""
    if name in _OTHERS:
        return name
    try:
        found = np.dtype(name or dtype)
    # NumPy parses a name like "(2,)f4" as Python; a ValueError is of a number of thousands of digits.
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(
            f'{shown(dtype)} is no type of elements; one is named "float16", "bfloat16", "int32" or the like'
        ) from None
    if found.name in _OTHERS:  # of a package that adds it to NumPy
        return str(found.name)
    if found.kind not in _KINDS or found.itemsize > 16:
        raise TypeError(f"an array of {found} cannot be allocated; allocate bytes")
    if not found.isnative:
        raise ValueError(f"{found.str!r} has another byte order than this machine")
    return str(found.name)


def _is_torchs(dtype: Any) -> bool:
    return type(dtype).__module__ == "torch"
