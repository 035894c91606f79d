"""Declares iovec, memory that rings take, with the results of its transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from zerohop.compat.hf3fs.buffers import Buffer
from zerohop.compat.hf3fs.mounts import folder_of
from zerohop.config.checks import check_int

if TYPE_CHECKING:
    from typing_extensions import Buffer as HasBuffer
    from typing_extensions import Self


class iovec(np.ndarray[Any, np.dtype[np.uint8]]):  # noqa: N801 - 3FS's name
    """Shows registered host memory as bytes, and slices of it as iovecs. Of numpy's arrays it has the buffer.

    Two iovecs are equal if they are the same object, and each is true, as in 3FS; compare bytes with
    ``np.asarray(iov)``, ``memoryview(iov)`` or ``bytes(iov)``.

    Attributes:
        result: after ``wait``: the bytes that were moved, or the negative number of an error (``errno``).
        userdata: what ``prepare`` was given for the last transfer.
        buffer: the memory that it is part of; None for an array that was calculated from one.
    """

    result: int
    userdata: Any
    buffer: Buffer | None

    def __new__(cls, base: Any, id: str, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1) -> Self:  # noqa: A002 - 3FS's name
        """Register a buffer; ``make_iovec`` does the same without an id.

        Args:
            base: a SharedMemory, or another buffer of host memory that may be written to.
            id: a UUID. It has no effect: memory is not found by it.
            hf3fs_mount_point: a mount point, or a folder.
            block_size: no effect: memory is registered as one block, and a transfer may be anywhere in it.
            numa: no effect: pages stay where they are.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            StorageError: there is no such mount point.
            ZerohopError: as for ``Store.wrap``.
        """
        UUID(id)
        array: Self = made(cls, base, hf3fs_mount_point, block_size, numa)
        return array

    def __array_finalize__(self, obj: object) -> None:
        self.result = 0
        self.userdata = None
        self.buffer = getattr(obj, "buffer", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        # An array that is calculated from an iovec is no memory of a ring.
        result = np.asarray(array)
        return result[()] if return_scalar or not result.ndim else result

    @property
    def base_off(self) -> int:
        """Return the offset in the memory that this is a slice of."""
        return place_of(self)[1]

    def slice_by(self, buf: HasBuffer) -> iovec:
        """Return the slice that a buffer shows, such as a part of a tensor that was made over this memory.

        Raises:
            IndexError: the buffer is not within this memory.
        """
        view = np.frombuffer(memoryview(buf).cast("B"), np.uint8)
        start = _address(view) - _address(self)
        if not 0 <= start <= self.nbytes - view.nbytes:
            raise IndexError("the buffer does not lie within the iovec")
        part: iovec = self[start : start + view.nbytes]
        return part

    if TYPE_CHECKING:  # numpy says that a slice is any array

        def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        # numpy would make a number of bytes.
        is_text = isinstance(value, (bytes, bytearray, memoryview))
        super().__setitem__(key, np.frombuffer(value, np.uint8) if is_text else value)

    def __eq__(self, other: object) -> Any:
        return self is other if isinstance(other, iovec) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self is not other if isinstance(other, iovec) else NotImplemented

    def __hash__(self) -> int:  # type: ignore[override]  # numpy says that arrays have none
        return id(self)

    def __bool__(self) -> bool:
        return True


def made(cls: type[iovec], base: Any, mount_point: str, block_size: int, numa: int) -> Any:
    """Do what ``iovec`` and ``make_iovec`` have in common."""
    folder_of(mount_point)
    check_int("block_size", block_size, 0)
    check_int("numa", numa, -1)
    buffer = Buffer(base, mount_point)
    # numpy keeps the Buffer for the array, and for all that is made over its memory.
    array = np.asarray(buffer).view(cls)
    array.buffer = buffer
    return array


def place_of(part: iovec) -> tuple[Buffer, int]:
    """Return the memory that an iovec is part of, and its offset there.

    Raises:
        TypeError: it is no iovec.
        ValueError: it is no part of registered memory, or not a row of bytes.
    """
    if not isinstance(part, iovec):
        raise TypeError(f"a transfer is with an iovec, or a slice of one, not {type(part).__name__}")
    buffer = part.buffer
    offset = -1 if buffer is None else _address(part) - buffer.address
    if buffer is None or not 0 <= offset <= buffer.nbytes - part.nbytes:
        raise ValueError("the iovec is no part of the memory that it was made of: it is a copy")
    if part.ndim != 1 or not part.flags.c_contiguous:
        raise ValueError("a slice of an iovec has step 1")
    return buffer, offset


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
