"""Declares FileEngine, the part of a Store that its files and rings use: what begins transfers, and waits for them."""

from __future__ import annotations

import abc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from zerohop.core.face import Face, InFlight, begun
from zerohop.errors import Closed, ZerohopError
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import Iov

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    import numpy as np

    from zerohop._native import Op
    from zerohop.core.face import Local, Memory, Operation, View
    from zerohop.storage.alignment import Alignment
    from zerohop.storage.file_ring import FileRing

    # Offsets and lengths in bytes.
    Offsets: TypeAlias = np.ndarray[Any, Any] | tuple[int, ...] | list[int]
    # For each transfer: offset in the file, offset in the memory, length.
    Places: TypeAlias = tuple[Offsets, Offsets, Offsets]
    AnyMemory: TypeAlias = Memory | View | ImportedIov


class OpenFile(Protocol):
    """Declares what a Store needs of a File."""

    path: str
    alignment: Alignment | None

    def native(self) -> Any:
        """Return the open file as its Store knows it; raise Closed if it is closed."""


class FileEngine(Face, abc.ABC):
    """Carries out transfers between files and the memory of a Context, on behalf of Files and Rings."""

    _closed = True  # until a constructor has done everything
    # Errors of results that say more than a status and a reason, by the number that stands for the reason.
    told: Mapping[int, ZerohopError] = MappingProxyType({})

    @property
    @abc.abstractmethod
    def engine(self) -> str:
        """Return how files are read and written."""

    @property
    def why_no_uring(self) -> str:
        """Return why threads read and write instead of io_uring; empty if io_uring does."""
        return ""

    @property
    def spin_ns(self) -> int:
        """Return for how many nanoseconds a wait polls before it sleeps."""
        return self._core.spin_ns

    def check_usable(self) -> None:
        """Raise Closed if the Store or its Context is closed."""
        if self._closed and not self._core.forked:
            raise Closed("the Store is closed", fix="open another one: open_store()", operation="storage")
        self._core.check_open()

    def memory_of(self, x: Local | Iov | ImportedIov) -> AnyMemory:
        """Return the memory that an argument names; an array is registered through the cache."""
        if isinstance(x, ImportedIov):
            return x
        return self._view(x.memory if isinstance(x, Iov) else x)

    def deadline_of(self, timeout: float | None) -> int:
        """Return a call's deadline, in nanoseconds of the monotonic clock; 0: none."""
        return self._deadline(timeout)

    def refused(self, kind: str, error: ZerohopError) -> Operation[Any]:
        """Return an Operation that has failed."""
        return self._failed(kind, error)

    def pending(self, kind: str, native: Op, keep: object) -> Operation[int]:
        """Return the Operation of a native one that moves no bytes of its own."""
        return begun(InFlight[int](), self._core, kind, 0, native, keep)

    @abc.abstractmethod
    def new_iov(self, memory: Memory | View, *, owned: bool) -> Iov:
        """Return an Iov of memory."""

    @abc.abstractmethod
    def new_ring(self, entries: int, writes: bool, priority: int) -> FileRing:
        """Return what carries out the transfers of a Ring."""

    @abc.abstractmethod
    def place_of(self, file: OpenFile, view: AnyMemory, *, writes: bool) -> tuple[Any, Any, int, int]:
        """Return what ``FileRing.prepare`` takes for a file and memory.

        Raises:
            Unsupported: what the Store was opened with forbids transfers between them.
        """

    @abc.abstractmethod
    def transfer(
        self,
        kind: str,
        file: OpenFile,
        view: AnyMemory,
        places: Places,
        timeout: float | None,
        *,
        writes: bool,
        short: bool,
    ) -> Operation[int]:
        """Begin transfers between a file and memory, as one Operation."""

    @abc.abstractmethod
    def file_call(self, kind: str, file: OpenFile, *args: int) -> Operation[Any]:
        """Do one of the calls of file_calls.py with an open file."""
