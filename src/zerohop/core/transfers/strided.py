"""Moves strided blocks, rows of one length with a stride between their starts, as page lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.config.checks import as_int
from zerohop.core.transfers.context_transfers import ContextTransfers
from zerohop.shown import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zerohop.core.memory.register import Local
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.runtime.streams import Stream

_MOST_PAGES: Final = 1 << 23


class StridedTransfers(ContextTransfers):
    """Adds strided blocks to the methods of Context."""

    def write_strided(
        self,
        src: Local,
        dst: RemoteBuffer,
        *,
        rows: int,
        row_bytes: int,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Write ``rows`` rows of ``row_bytes`` each as one Operation; value: bytes moved.

        Row i begins at ``i * src_stride`` in ``src`` and goes to ``i * dst_stride`` in ``dst``. The rows have no order
        among each other; ``notify`` comes after all of them. Done, errors and cost are those of ``write_pages``: a row
        is split into pages of the largest number of bytes that divides its length and both strides. On a GPU one kernel
        copies all pages.

        Args:
            src: memory here that all rows lie in.
            dst: memory there.
            rows: number of rows.
            row_bytes: length of a row.
            src_stride: bytes from the start of a row to the start of the next, at least ``row_bytes``, its default.
            dst_stride: as ``src_stride``, for ``dst``.
            notify: as for ``write``.
            message: as for ``write``.
            timeout: as for ``write``.
            stream: as for ``write``.

        Raises:
            TypeError, ValueError: numbers that make no such block, or one of more than 8388608 pages.
        """
        here, there, page_bytes = as_pages(rows, row_bytes, src_stride, dst_stride)
        return self.write_pages(
            src, dst, here, there, page_bytes=page_bytes, notify=notify, message=message, timeout=timeout, stream=stream
        )

    def write_strided_nowait(
        self,
        src: Local,
        dst: RemoteBuffer,
        *,
        rows: int,
        row_bytes: int,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write rows like ``write_strided``, but post nothing and raise WouldBlock if the lane is full or not ready."""
        here, there, page_bytes = as_pages(rows, row_bytes, src_stride, dst_stride)
        return self.write_pages_nowait(
            src, dst, here, there, page_bytes=page_bytes, notify=notify, message=message, timeout=timeout
        )

    def read_strided(
        self,
        src: RemoteBuffer,
        into: Local,
        *,
        rows: int,
        row_bytes: int,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
    ) -> Operation[int]:
        """Read rows from ``src``, ``src_stride`` apart, into ``into``, ``dst_stride`` apart; see write_strided."""
        there, here, page_bytes = as_pages(rows, row_bytes, src_stride, dst_stride)
        return self.read_pages(
            src,
            into,
            there,
            here,
            page_bytes=page_bytes,
            notify=notify,
            message=message,
            timeout=timeout,
            stream=stream,
        )

    def read_strided_nowait(
        self,
        src: RemoteBuffer,
        into: Local,
        *,
        rows: int,
        row_bytes: int,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        notify: int | None = None,
        message: bytes | None = None,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read rows like ``read_strided``, but post nothing and raise WouldBlock if the lane is full or not ready."""
        there, here, page_bytes = as_pages(rows, row_bytes, src_stride, dst_stride)
        return self.read_pages_nowait(
            src, into, there, here, page_bytes=page_bytes, notify=notify, message=message, timeout=timeout
        )


def as_pages(
    rows: int, row_bytes: int, src_stride: int | None, dst_stride: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the pages of a strided block at its source and its target, and their length."""
    rows, row_bytes = _number("rows", rows, 0), _number("row_bytes", row_bytes, 1)
    strides = [
        row_bytes if stride is None else _number(name, stride, row_bytes)
        for name, stride in (("src_stride", src_stride), ("dst_stride", dst_stride))
    ]
    # The strides do not matter for one row.
    page_bytes = math.gcd(row_bytes, *strides) if rows > 1 else row_bytes
    in_a_row = row_bytes // page_bytes
    if rows * in_a_row > _MOST_PAGES:
        raise ValueError(
            f"{rows} rows of {row_bytes} bytes, {strides[0]} and {strides[1]} apart, have no longer page in common than"
            f" {page_bytes} bytes: {rows * in_a_row} pages, and {_MOST_PAGES} may be."
            f" Fix: use strides that are multiples of more bytes, or several calls"
        )
    pages = [
        (np.arange(rows, dtype=np.int64)[:, None] * (stride // page_bytes) + np.arange(in_a_row)).reshape(-1)
        for stride in strides
    ]
    return pages[0], pages[1], page_bytes


def _number(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    number = value if type(value) is int else as_int(name, value)
    if not least <= number < 1 << 62:
        raise ValueError(f"{name} must be at least {least}, and less than 2**62, not {shown(number)}")
    return number
