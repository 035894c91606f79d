"""Declares FileEngine, the part of a Store that its files and rings use: what begins transfers, and waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop._native import NativeError
from zerohop.core.face import Explanation, Face, InFlight, begun, index_array, offset_of, region_of
from zerohop.errors import Closed, ZerohopError, from_native
from zerohop.storage import failures
from zerohop.storage.iov import Iov
from zerohop.storage.operation import FilePath, FileTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias, TypeVar

    import numpy as np

    from zerohop._native import FileQueue, FileRing, Op, OpenFile
    from zerohop.core.face import Context, Local, Memory, Operation, View

    T = TypeVar("T")
    # Offsets and lengths in bytes.
    Offsets: TypeAlias = np.ndarray[Any, Any] | Sequence[int]

# Transfers under way at once, at most.
_DEPTH = 256


class FileEngine(Face):
    """Carries out transfers between files and the memory of a Context, on behalf of Files and Rings."""

    def __init__(
        self,
        ctx: Context | None,
        settings: Mapping[str, Any],
        timeout: float | None,
        *,
        threads: int,
        staging_bytes: int,
        uring: bool,
    ) -> None:
        super().__init__(ctx, settings, timeout)
        try:
            self._queue: FileQueue = self._file_queue(_DEPTH, threads, staging_bytes, uring=uring)
        except BaseException:
            self._close_context()
            raise
        self._closed = False

    @property
    def engine(self) -> str:
        """Return ``"io_uring"`` or ``"threads"``: how files are read and written."""
        return self._queue.backend

    @property
    def why_no_uring(self) -> str:
        """Return why threads read and write instead of io_uring; empty if io_uring does."""
        return self._queue.why_no_uring

    @property
    def spin_ns(self) -> int:
        """Return for how many nanoseconds a wait polls before it sleeps."""
        return self._core.spin_ns

    def check_usable(self) -> None:
        """Raise Closed if the Store or its Context is closed."""
        self._core.check_open()
        if self._closed:
            raise Closed("the Store is closed", operation="storage")

    def memory_of(self, x: Local | Iov) -> Memory | View:
        """Return the memory that an argument names; an array is registered through the cache."""
        return self._view(x.memory if isinstance(x, Iov) else x)

    def new_iov(self, memory: Memory | View, *, owned: bool) -> Iov:
        """Return an Iov of memory, which the system keeps at hand if it can."""
        region, queue = region_of(memory), self._queue
        try:
            why = queue.fix(region)
        except ValueError:  # the memory was closed meanwhile
            why = "the memory is closed"
        return Iov(memory, why, lambda: queue.unfix(region), owned=owned)

    def deadline_of(self, timeout: float | None) -> int:
        """Return a call's deadline, in nanoseconds of the monotonic clock; 0: none."""
        return self._deadline(timeout)

    def new_ring(self, entries: int, writes: bool, priority: int) -> FileRing:
        """Return the native part of a Ring."""
        return self._queue.ring(entries, writes, priority)

    def transfer(
        self,
        kind: str,
        path: str,
        file: OpenFile,
        view: Memory | View,
        places: tuple[Offsets, Offsets, Offsets],
        timeout: float | None,
        *,
        writes: bool,
        short: bool,
    ) -> Operation[int]:
        """Begin transfers, for each entry of ``places``: offsets in the file, offsets in the memory, and lengths."""
        offsets, at, lengths = places
        sizes = index_array(lengths, "lengths")
        nbytes = int(sizes.sum())
        try:
            posted = self._queue.transfer(
                file,
                region_of(view),
                writes,
                offset_of(view),
                view.nbytes,
                index_array(offsets, "offsets in the file"),
                index_array(at, "offsets in the memory"),
                sizes,
                not (short or writes),
                self._deadline(timeout),
            )
        except NativeError as error:
            self.check_usable()
            raise from_native(*error.args, operation=kind) from None
        operation = FileTransfer()
        begun(operation, self._core, kind, nbytes, posted, (view, file), self._path(path, view.device, writes=writes))
        return operation

    def pending(self, kind: str, native: Op, keep: object) -> Operation[int]:
        """Return the Operation of a native one that moves no bytes of its own."""
        return begun(InFlight[int](), self._core, kind, 0, native, keep)

    def at_once(self, kind: str, path: str, do: Callable[[], T]) -> Operation[T]:
        """Do something that takes no longer than a few calls of the system, and return its Operation, which has ended.

        Raises:
            TypeError: ``path`` is no text.
            Closed: the Store is closed.
        """
        self.check_usable()
        if not isinstance(path, str):
            raise TypeError(f"a path is a string, not {type(path).__name__}")
        try:
            return self._finished(kind, do())
        except ZerohopError as error:
            return self._failed(kind, error)
        except OSError as error:
            return self._failed(kind, failures.of_os(error, kind, path))

    def _path(self, path: str, device: str, *, writes: bool) -> FilePath:
        ends = (device, "file") if writes else ("file", device)
        rejected = (("io_uring", self.why_no_uring),) if self.why_no_uring else ()
        return FilePath(path, Explanation("file", self.engine, device == "host", *ends, rejected))
