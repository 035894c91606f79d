"""Declares Iov, memory on the host or on a device that is made ready for transfers with files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from zerohop.core.face import HOST, Closeable, Memory, NotCopyable, Rights, View
from zerohop.shown import shown
from zerohop.storage.gpu_work import synchronize

if TYPE_CHECKING:
    from collections.abc import Callable

# 3FS gives this advice for GPUDirect RDMA, and allocations of NVIDIA's driver keep to it.
_LINE: Final = 256
# Why pages are not kept at hand that are not this process's own.
REPLACEABLE: Final = "the memory is a mapping of a file, whose pages others may replace"


class Iov(Closeable, NotCopyable):
    """Holds a range of registered memory that files are read into and written from, many times.

    The system keeps the pages of host memory at hand until the Iov is closed or dropped, which saves it a good part of
    the work of each transfer. An Iov stands wherever a Memory may, and slices of it are Views: ``iov[a:b]``, in
    bytes. It is a context manager that closes itself.

    Attributes:
        memory: the Memory or View that it is made of.
        not_fixed: why the system does not keep the pages at hand: transfers are right, and slower; empty if it does.
            It never keeps those of a mapped file, which others may cut or give holes.
    """

    _copy_refusal = "an Iov stays in its process, and is not copied; send iov.export(), or wrap() it again"

    def __init__(self, memory: Memory | View, not_fixed: str, release: Callable[[], None], *, owned: bool) -> None:
        """Use ``Store.iov`` or ``Store.wrap``."""
        self.memory = memory
        self.not_fixed = not_fixed
        self._release = release
        self._owned = owned
        self._ended = False
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Return the length in bytes."""
        return self.memory.nbytes

    @property
    def device(self) -> str:
        """Return ``"host"``, or the name of the device, such as ``"cuda:0"``."""
        return self.memory.device

    @property
    def is_device(self) -> bool:
        """Tell whether the memory is a device's."""
        return self.memory.device != HOST

    @property
    def advice(self) -> str:
        """Return what may keep NICs and copies from being as fast as they could be with this memory; usually empty.

        Memory of a GPU should begin at a multiple of 256 bytes, as every allocation of its own does. Transfers are
        right without that.
        """
        behind = self.memory.address % _LINE if self.is_device else 0
        if not behind:
            return ""
        return f"the memory begins {behind} bytes behind a multiple of {_LINE}; begin it at one, as an allocation does"

    def sync(self, direction: Literal["to_file", "from_file"]) -> None:
        """Wait until transfers in a direction find, or have left, the bytes of the memory's device as they should be.

        Transfers are in no stream of the user's: before a GPU's memory is written to a file, its work has to be done.

        Args:
            direction: ``"to_file"``: waits until a GPU of NVIDIA has done all that this process has told it, on any
                stream, as ``cudaDeviceSynchronize`` does. ``"from_file"``: there is nothing to wait for, because a
                device sees the bytes as soon as the result of a transfer is there; nor is there for memory of the host.

        Raises:
            ValueError: there is no such direction.
            DeviceFailed: work of the GPU has failed.
            Unsupported: the device is neither a GPU of NVIDIA nor simulated.
        """
        if direction not in ("to_file", "from_file"):
            raise ValueError(f'direction is "to_file" or "from_file", not {shown(direction)}')
        if direction == "to_file":
            synchronize(self.device)

    def export(self, rights: Rights = "rw") -> bytes:
        """Return the bytes of a handle (RemoteBuffer), with which other processes reach the memory.

        Raises:
            ValueError: the memory does not have these rights.
            Closed: the memory or its Context is closed.
        """
        return bytes(self.memory.share(rights))

    def close(self) -> None:
        """Give back what was made for the Iov.

        Memory that ``Store.iov`` has allocated is closed, which ends its handles. Memory that was wrapped is as it was
        before ``wrap``: an array is registered no more, and a Memory stays open. Nothing that was wrapped is freed.
        """
        self._closed = True
        if not self._ended:  # a signal's handler may have cut short an earlier call
            self._release()
            if self._owned and isinstance(self.memory, Memory):
                self.memory.close()
            self._ended = True

    def __del__(self) -> None:
        # The constructor may have been interrupted, or close().
        if not getattr(self, "_ended", True):
            self._closed = self._ended = True
            self._release()

    def __getitem__(self, key: slice) -> View:
        return self.memory[key]

    def __len__(self) -> int:
        return self.memory.nbytes

    def __repr__(self) -> str:
        return f"<Iov of {self.memory!r}{', closed' if self._closed else ''}>"
