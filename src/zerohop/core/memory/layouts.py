"""Describes how the elements of an array lie in memory, so that no value arrives at the place of another.

A transfer moves bytes in the order of their addresses. So two arrays must lie alike, or one of them must be mere bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Memory that is no array, or an array of one axis: its bytes are in the only order that there is.
BYTES: Final = b""
# The order of the axes, as in C: the last axis is the innermost.
ROWS: Final = b"rows"
# A handle has no room for more.
_MAX_BYTES: Final = 256


def layout_of(shape: Sequence[int], strides: Sequence[int], unit: int, itemsize: int) -> bytes | None:
    """Return the layout of an array without gaps; None if there are gaps, or if elements lie upon each other.

    Arrays with the same layout hold the same values at the same offsets. Their outermost axes may differ in length, as
    two caches may that have the same kind of page.

    Args:
        shape: the lengths of the axes.
        strides: the steps of the axes, in any unit.
        unit: the length of an element in the unit of the strides.
        itemsize: the length of an element in bytes.
    """
    if 0 in shape:
        return BYTES
    axes = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1]
    order = sorted(range(len(axes)), key=lambda axis: axes[axis][0])
    expected = unit
    for axis in order:
        stride, size = axes[axis]
        if stride != expected:
            return None
        expected *= size
    if order == list(range(len(axes)))[::-1]:
        return ROWS if len(axes) > 1 else BYTES
    inner = ",".join(f"{axis}x{axes[axis][1]}" for axis in order[:-1])
    return f"{itemsize}:{inner},{order[-1]}".encode()


def require_rows(layout: bytes | None, what: str, copy: str, *, as_bytes: bool) -> bytes:
    """Return the layout of an array whose bytes may be moved as they lie.

    Raises:
        ValueError: the array has gaps; or it is permuted, and the caller did not say ``as_bytes``.
    """
    if layout is None:
        raise ValueError(f"the {what} is not contiguous, so its bytes are not one range. Fix: pass {copy}")
    if layout not in (ROWS, BYTES) and not as_bytes:
        raise ValueError(
            f"the {what} is not contiguous: its axes lie in another order in memory (transposed, channels last, "
            f"Fortran order), so its values would arrive in that order. Fix: pass {copy}; or move rows with "
            f"write_strided; or, where both sides have the same layout, pass register(x, as_bytes=True)"
        )
    if len(layout) > _MAX_BYTES:
        raise ValueError(f"the {what} has too many axes to say in what order they lie. Fix: pass {copy}")
    return layout


def scrambled(here: bytes, there: bytes) -> ValueError:
    """Return the error for arrays at both ends of a transfer whose values lie in different orders."""
    return ValueError(
        f"the values lie in another order here ({here!r}) than there ({there!r}), so they would arrive scrambled. Fix: "
        f"make both contiguous, or give both the same shape and order of axes"
    )
