"""Declares Buffer, memory of this process that files are read into and written from."""

from __future__ import annotations

import ctypes
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

from zerohop.compat.hf3fs import state
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.compat.hf3fs.state import State
    from zerohop.storage import Iov


class Buffer:
    """Holds registered host memory as long as an ``iovec`` of it is left.

    Attributes:
        iov: the Iov of the memory.
        address: address of the first byte.
        nbytes: length in bytes.
        mount_point: the mount point that it was made for.
    """

    def __init__(self, base: Any, mount_point: str) -> None:
        """Register a SharedMemory, or another object with a buffer that may be written to.

        Raises:
            TypeError: it has no buffer of host memory.
            ValueError: it is empty, read-only or not contiguous.
            ZerohopError: as for ``Store.wrap``.
        """
        shared = isinstance(base, SharedMemory)
        try:
            view = memoryview(base.buf if shared else base)
        except TypeError:
            raise TypeError(
                f"an iovec is made of a SharedMemory or another buffer of host memory, not of {shown(base)}. Fix: for "
                "memory of a GPU use hf3fs_iovwrap_gpu"
            ) from None
        if view.readonly or not view.contiguous or not view.nbytes:
            kind = "read-only" if view.readonly else "empty" if not view.nbytes else "not contiguous"
            raise ValueError(f"an iovec is made of a contiguous buffer that may be written to; this one is {kind}")
        self.nbytes = view.nbytes
        self.mount_point = mount_point
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        # A SharedMemory that lends its buffer cannot be closed, and programs for 3FS close it as soon as they have
        # dropped the iovec, though they may have slices of it. So it lends nothing here, as in 3FS.
        self._keep: object = base if shared else view
        if shared:
            view.release()
        self._state: State = state.current()
        self.iov: Iov = self._state.store().wrap((self.address, self.nbytes, "host"))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": (self.nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        # The constructor may have raised. In a forked child the memory is the parent's.
        if "iov" in self.__dict__ and self._state is state.current():
            self.iov.close()
