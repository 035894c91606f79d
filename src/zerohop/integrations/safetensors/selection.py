"""Finds where the bytes of a part of a tensor lie in its file: runs of equal length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop.integrations.safetensors.dtypes import BITS
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.integrations.safetensors.layout import TensorEntry


class Part(NamedTuple):
    """Describes a part of a tensor.

    Attributes:
        shape: its shape, in elements.
        starts: offsets in bytes, from the tensor's first, of the runs that make it up, in its order.
        run: length in bytes of each run.
    """

    shape: tuple[int, ...]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    run: int


def whole(entry: TensorEntry) -> Part:
    """Return all of a tensor as a Part."""
    return Part(entry.shape, np.zeros(1 if entry.nbytes else 0, np.int64), entry.nbytes)


def part_of(entry: TensorEntry, slices: Sequence[slice] | slice) -> Part:
    """Return the part of a tensor that slices choose, one for each of the first dimensions.

    Negative bounds count from the end, and what lies beyond it is left out, as everywhere in Python.

    Raises:
        TypeError: they are no slices.
        ValueError: there are more of them than dimensions, one has a step, or an element does not begin at a byte.
    """
    name = shown(entry.name)
    given = tuple(slices) if isinstance(slices, (tuple, list)) else (slices,)
    if not all(isinstance(each, slice) for each in given):
        raise TypeError(
            f"slices of tensor {name} are slices, one a dimension, such as (slice(0, 8), slice(None)), "
            f"not {shown(slices)}"
        )
    if len(given) > len(entry.shape):
        raise ValueError(f"tensor {name} has {len(entry.shape)} dimensions, and {len(given)} slices")
    bounds = [_bounds(name, each, length) for each, length in zip(given, entry.shape, strict=False)]
    bounds += [(0, length) for length in entry.shape[len(given) :]]
    shape = tuple(stop - start for start, stop in bounds)
    if not math.prod(shape):
        return Part(shape, np.zeros(0, np.int64), 0)
    # The innermost dimension that is not taken whole makes the runs; those inside of it are parts of each run.
    cut = max((at for at, each in enumerate(bounds) if each != (0, entry.shape[at])), default=-1)
    bits = BITS[entry.dtype]
    if cut < 0:
        return whole(entry)
    strides = [math.prod(entry.shape[at + 1 :]) * bits for at in range(len(bounds))]
    starts = _starts(name, bounds[: cut + 1], strides)
    run = shape[cut] * strides[cut]
    if run % 8 or (starts % 8).any():
        raise ValueError(
            f"slices of tensor {name} cut through a byte: {entry.dtype} has {bits} bits, so begin and end at multiples "
            f"of {8 // math.gcd(bits, 8)}"
        )
    return Part(shape, starts // 8, run // 8)


def _starts(name: str, bounds: list[tuple[int, int]], strides: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where the runs begin, in bits; raise MemoryError if they are too many."""
    starts = np.array([bounds[-1][0] * strides[len(bounds) - 1]], np.int64)
    try:
        for at in reversed(range(len(bounds) - 1)):
            first, stop = bounds[at]
            starts = (np.arange(first, stop, dtype=np.int64)[:, None] * strides[at] + starts).reshape(-1)
    except MemoryError:
        count = math.prod(stop - first for first, stop in bounds[:-1])
        raise MemoryError(
            f"no memory is left for the places of {count} pieces, which slices of tensor {name} cut it into: "
            "load it whole, or cut its first dimensions"
        ) from None
    return starts


def _bounds(name: str, chosen: slice, length: int) -> tuple[int, int]:
    try:
        start, stop, step = chosen.indices(length)
    except (TypeError, ValueError) as error:
        raise type(error)(f"slices of tensor {name}: {error}") from None
    if step != 1:
        raise ValueError(f"slices of tensor {name} have a step; load without it, and take every n-th yourself")
    return start, max(start, stop)
