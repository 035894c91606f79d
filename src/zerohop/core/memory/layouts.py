"""Describes how the elements of an array lie in memory, so that no value arrives at the place of another.

A transfer moves bytes in the order of their addresses. So two arrays must lie alike, or one of them must be mere bytes.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Final

from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

# Memory that is no array, or an array of one axis: its bytes are in the only order that there is.
BYTES: Final = b""
# The order of the axes, as in C: the last axis is the innermost.
ROWS: Final = b"rows"
# The layouts of which the bytes lie in the order of the numbers.
IN_ORDER: Final = (ROWS, BYTES)
# NumPy and PyTorch have no arrays of more axes.
MAX_AXES: Final = 64
# A handle has no room for more.
_MAX_BYTES: Final = 256


def is_masked(x: object) -> bool:
    """Tell whether an object is a masked array of NumPy, without loading the module of those."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(x, module.MaskedArray)


def count_of(shape: Sequence[int]) -> int:
    """Return the number of elements of an array; raise ValueError if an axis has a length that none can have."""
    if min(shape, default=0) < 0:
        raise ValueError(f"no array has the shape {shown(tuple(shape))}: an axis has 0 elements at least")
    return math.prod(shape)


def layout_of(shape: Sequence[int], strides: Sequence[int], unit: int, itemsize: int) -> bytes | None:
    """Return the layout of an array without gaps; None if there are gaps, or if elements lie upon each other.

    It is ``ROWS`` or ``BYTES``, or names the size of an element, and the axes from the innermost one on, with their
    lengths; axes of one element have no place.

    Args:
        shape: the lengths of the axes.
        strides: the steps of the axes, in any unit.
        unit: the length of an element in the unit of the strides.
        itemsize: the length of an element in bytes.

    Raises:
        ValueError: there are not as many strides as axes.
    """
    if len(shape) != len(strides):
        raise ValueError(f"an array of {len(shape)} axes has as many strides, not {len(strides)}")
    if 0 in shape:
        return BYTES
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    order = sorted(axes, key=lambda axis: strides[axis])
    expected = unit
    for axis in order:
        if strides[axis] != expected:
            return None
        expected *= shape[axis]
    if order == axes[::-1]:
        return ROWS if len(axes) > 1 else BYTES
    return f"{itemsize}:{','.join(f'{axis}x{shape[axis]}' for axis in order)}".encode()


def require_rows(layout: bytes | None, what: str, copy: str, *, as_bytes: bool) -> bytes:
    """Return the layout of an array whose bytes may be moved as they lie.

    Raises:
        ValueError: the array has gaps; or it is permuted, and the caller did not say ``as_bytes``.
    """
    if layout is None:
        raise ValueError(
            f"the {what} is not contiguous, so its bytes are not one range: there are gaps, or elements share memory. "
            f"Fix: pass {copy}; or register the whole that it is a part of, and move its rows with write_strided"
        )
    if is_permuted(layout) and not as_bytes:
        raise ValueError(
            f"the {what} is not contiguous: its axes lie in another order in memory (transposed, channels last, "
            f"Fortran order), so its values would arrive in that order. Fix: pass {copy}; or pass the array that it "
            f"is a view of, and move rows with write_strided; or, where both sides have the same layout, pass "
            f"register(x, as_bytes=True)"
        )
    if len(layout) > _MAX_BYTES:
        raise ValueError(f"the {what} has too many axes to say in what order they lie. Fix: pass {copy}")
    return layout


def is_permuted(layout: bytes) -> bool:
    """Tell whether the axes of an array lie in another order than that of their numbers."""
    return layout not in IN_ORDER


def same_places(here: bytes, there: bytes) -> bool:
    """Tell whether two arrays hold their values at the same offsets, or one of them is mere bytes.

    The outermost axes may differ in length, as those of two caches do that have the same kind of page; one of them may
    also have a single page.
    """
    if here == there or not here or not there:
        return True
    if not (is_permuted(here) and is_permuted(there)):
        return False
    (size, few), (other_size, many) = sorted(
        ((head, rest.split(b",")) for head, _, rest in (layout.partition(b":") for layout in (here, there))),
        key=lambda each: len(each[1]),
    )
    if size != other_size:
        return False
    if len(few) == len(many):  # the axis is the same, and its length does not matter
        few, many = ([*each[:-1], each[-1].partition(b"x")[0]] for each in (few, many))
    return len(many) <= len(few) + 1 and _ranked(few) == _ranked(many[: len(few)])


def _ranked(axes: list[bytes]) -> list[tuple[int, bytes]]:
    """Return the axes of a layout with their ranks in place of their numbers, which count axes of one element, too.

    They come from a peer, so they may be no numbers.
    """
    names = [(axis.partition(b"x")[0], axis.partition(b"x")[2]) for axis in axes]
    order = sorted({name for name, _ in names}, key=lambda name: (len(name), name))
    return [(order.index(name), length) for name, length in names]


def without_order() -> ValueError:
    """Return the error for a message from or into an array whose axes lie in another order in memory."""
    return ValueError(
        "a message does not say how an array lies, and the axes of this one lie in another order in memory. Fix: use "
        "write or read, whose handle says it; or send and receive contiguous arrays"
    )


def scrambled(here: bytes, there: bytes) -> ValueError:
    """Return the error for arrays at both ends of a transfer whose values lie in different orders."""
    return ValueError(
        f"the values lie in another order here ({here!r}) than there ({there!r}), so they would arrive scrambled. Fix: "
        f"make both contiguous, or give both the same shape and order of axes; or, where the bytes are to arrive as "
        f"they lie, pass a flat array, x.reshape(-1)"
    )
