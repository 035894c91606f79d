"""Declares LocalStore, the Store of a folder of this machine."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from zerohop._native import URING_DEPTH, NativeError, Reached, duplicate, open_path
from zerohop.config.checks import check_int
from zerohop.config.processors import usable_processors
from zerohop.core.face import HOST, RemoteBuffer, begun, index_array, may_be_replaced, offset_of, region_of, start_of
from zerohop.errors import Unsupported, ZerohopError, from_native
from zerohop.shown import shown
from zerohop.storage import failures, file_calls, names
from zerohop.storage.beneath import check_openat2
from zerohop.storage.direct import check_ranges, of_device
from zerohop.storage.direct_ring import DirectRing
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import REPLACEABLE, Iov
from zerohop.storage.opening import of_descriptor, opened
from zerohop.storage.operation import FilePath, FileTransfer
from zerohop.storage.store import Store, check_characters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from zerohop._native import FileQueue, FileServing, ServedBytes
    from zerohop.core.face import Context, Link, Memory, Operation, View
    from zerohop.storage.file import File, Mode
    from zerohop.storage.file_engine import AnyMemory, OpenFile, Places
    from zerohop.storage.file_ring import FileRing

    T = TypeVar("T")

_PAGE: Final = 4096
_USUAL_THREADS: Final = 8, 16  # a disk is busy with the first; more than the second copy no faster
_MIB: Final = 1 << 20
_MOST_STAGING_BYTES: Final = 1 << 40
_MOST_THREADS: Final = 256


def threads_of(threads: int | None) -> int:
    """Check the argument ``threads``, and return how many there may be: None means one for each processor, 8 to 16.

    Raises:
        ValueError, TypeError: it is no number of threads.
    """
    if threads is None:
        least, most = _USUAL_THREADS
        return min(most, max(least, len(usable_processors())))
    check_int("threads", threads, 1, _MOST_THREADS)
    return threads


class LocalStore(Store):
    """Reads and writes a folder of this machine; made by ``open_store``.

    Attributes:
        require: ``"direct"`` if transfers that cannot go past the page cache are refused.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        ctx: Context | None,
        engine: str,
        threads: int | None,
        staging_bytes: int,
        timeout: float | None,
        settings: dict[str, Any],
        require: str | None = None,
        operation: str = "open_store",
    ) -> None:
        """Use ``open_store``, or ``Server``, which errors name then as ``operation``."""
        self.folder = os.fspath(where) if isinstance(where, os.PathLike) else where
        if not isinstance(self.folder, str):
            raise TypeError(f"where is the path of a folder, as a string or a Path, not {type(self.folder).__name__}")
        check_characters("where, the path of a folder,", self.folder)
        if engine not in ("auto", "threads"):
            raise ValueError(f'engine is "auto" or "threads", not {shown(engine)}')
        if require not in (None, "direct"):
            raise ValueError(f'require is "direct" or None, not {shown(require)}')
        self.require = require
        threads = threads_of(threads)
        check_int("staging_bytes", staging_bytes, _MIB, _MOST_STAGING_BYTES)
        try:
            self._root = open_path(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise failures.of_os(error, operation, self.folder) from None
        self._root_lock = threading.Lock()
        try:
            try:
                check_openat2(self._root.fileno())
            except OSError as error:  # no descriptor is left
                raise failures.of_os(error, operation, self.folder) from None
            super().__init__(ctx, settings, timeout)
            queue: FileQueue | None = None
            try:
                queue = self._file_queue(URING_DEPTH, threads, staging_bytes, uring=engine == "auto")
                self._queue = queue
                self._here: Memory | None = None  # memory of this side, which every path to another's needs
                self._closed = False
                self._join_context()
            except BaseException:
                self._closed = True
                self._leave_context()
                if queue is not None:
                    queue.close()
                self._close_context()
                raise
        except BaseException:
            self._root.close()
            raise

    @property
    def engine(self) -> str:
        """Return ``"io_uring"`` or ``"threads"``: how files are read and written."""
        return self._queue.backend

    @property
    def why_no_uring(self) -> str:
        """Return why threads read and write instead of io_uring; empty if io_uring does."""
        return self._queue.why_no_uring

    def open_file(self, path: str, mode: Mode, direct: bool | None) -> Operation[File]:
        """Do ``Store.open_file``."""
        required, gpu_required = self._requires(direct), self._gpu_required

        def work() -> File:
            with self._folder() as root:
                return opened(self, root, path, mode, direct, required=required, gpu_required=gpu_required)

        return self._at_once("open", path, work)

    def file_of(self, fd: int, *, direct: bool | None = None) -> Operation[File]:
        """Do ``Store.file_of``."""
        required, gpu_required = self._requires(direct), self._gpu_required
        return self._at_once(
            "file_of", "", lambda: of_descriptor(self, fd, direct, required=required, gpu_required=gpu_required)
        )

    def folder_call(self, kind: str, *paths: str, numbers: tuple[int, ...] = ()) -> Operation[Any]:
        """Do ``Store.folder_call``."""

        def work() -> Any:
            with self._folder() as root:
                return names.CALLS[kind](root, *paths, *numbers)

        return self._at_once(kind, paths[0], work)

    def file_call(self, kind: str, file: OpenFile, *args: int) -> Operation[Any]:
        """Do ``FileEngine.file_call``."""
        native = file.native()  # which keeps the descriptor open meanwhile
        return self._at_once(kind, file.path, lambda: file_calls.CALLS[kind][0](native.fd, *args))

    def new_iov(self, memory: Memory | View, *, owned: bool) -> Iov:
        """Return an Iov of memory, which the system keeps at hand if it can."""
        region, queue = region_of(memory), self._queue
        if may_be_replaced(memory):
            return Iov(memory, REPLACEABLE, lambda: None, owned=owned)
        try:
            why = queue.fix(region)
        except ValueError:  # the memory was closed meanwhile
            why = "the memory is closed"
        return Iov(memory, why, lambda: queue.unfix(region), owned=owned)

    def import_iov(self, data: bytes) -> Operation[ImportedIov]:
        """Do ``Store.import_iov``."""
        self.check_usable()
        handle = RemoteBuffer.from_bytes(data)
        if self._here is None:
            self._here = self.context.alloc(_PAGE)
        here = self._here

        async def work() -> ImportedIov:
            route, reached = await self._reach(here, handle)
            if reached is None:
                raise Unsupported(
                    f"this process does not reach the memory by itself, but over {route.explanation.provider}; "
                    "or its owner has closed it",
                    fix="import memory that alloc() or iov() has made in a process of this host, and keeps open; for a "
                    "device's, open the Store with that device; or read in its owner",
                    operation="import_iov",
                )
            index, address = reached.place()
            device = HOST if index < 0 else self.context.devices[index].name
            return ImportedIov(handle, reached, device, address + start_of(handle))

        return self._defer("import_iov", self._deadline(None), work)

    def new_ring(self, entries: int, writes: bool, priority: int) -> FileRing:
        """Return the native ring, which takes only direct transfers if the Store does."""
        try:
            ring = self._queue.ring(entries, writes, priority)
        except NativeError as error:
            self.check_usable()
            raise from_native(*error.args, operation="ring") from None
        direct = self._gpu_required
        # All that it lacks is passed on to the native one, which the type cannot say.
        of_host = self.require is not None
        return cast("FileRing", DirectRing(ring, self._device_of, of_host=of_host, writes=writes)) if direct else ring

    def place_of(self, file: OpenFile, view: AnyMemory, *, writes: bool) -> tuple[Any, Any, int, int]:
        """Return the open file, the region and the part of it."""
        del writes
        where = _where(view)
        self._why_staged("prepare", file.native(), where[0], view.device)
        return file if self._gpu_required else file.native(), *where

    @property
    def _gpu_required(self) -> bool:
        """Return whether bytes between files and devices must not pass through host buffers."""
        return "direct" in (self.require, self._core.settings.require)

    def _device_of(self, memory: Any) -> str:
        """Return the name of the device of memory as native code knows it."""
        index = memory.place()[0] if isinstance(memory, Reached) else memory.device
        return HOST if index < 0 else self.context.devices[index].name

    def _why_staged(self, kind: str, native: Any, memory: Any, device: str) -> str:
        """Return why bytes pass through host buffers; "" if they need not, or if the memory is the host's.

        Raises:
            Unsupported: the Store or the Context forbids host buffers.
        """
        why = "" if device == HOST else self._queue.why_staged(native, memory)
        if why and self._gpu_required:
            raise of_device(kind, device, why)
        return why

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
        """Have native code begin them."""
        native = file.native()
        memory, start, length = _where(view)
        offsets, at, lengths = places
        sizes = index_array(lengths, "lengths")
        nbytes = int(sizes.sum())
        try:
            why_staged = self._why_staged(kind, native, memory, view.device)
            if self.require is not None or (view.device != HOST and self._gpu_required):
                where = memory, start, length
                check_ranges(kind, file, where, places, writes=writes, device=view.device)
            posted, moved = self._queue.transfer(
                native,
                memory,
                writes,
                start,
                length,
                index_array(offsets, "offsets in the file"),
                index_array(at, "offsets in the memory"),
                sizes,
                not (short or writes),
                self._deadline(timeout),
            )
        except Unsupported as error:
            return self._failed(kind, error)
        except NativeError as error:
            self.check_usable()
            failure = from_native(*error.args, operation=kind)
            if isinstance(view, ImportedIov):  # its owner may close it at any time
                return self._failed(kind, failure)
            raise failure from None
        path = FilePath(file.path, self.engine, self.why_no_uring, view.device, moved, why_staged, writes=writes)
        operation = FileTransfer()
        begun(operation, self._core, kind, nbytes, posted, view, path)  # native code keeps the file
        return operation

    def keep(self, memory: Reached) -> None:
        """Have the system keep the pages of a peer's memory at hand, if it can."""
        self._queue.fix(memory)

    def serving(self, link: Link, answers: int, count: ServedBytes) -> FileServing | None:
        """Return what carries out the transfers of a client that asks over a lane; see ``Face._file_serving``."""
        return self._file_serving(link, self._queue, answers, count)

    def let_go(self, memory: Reached) -> None:
        """End what ``keep`` began."""
        self._queue.unfix(memory)

    def seconds_until(self, deadline_ns: int) -> float:
        """Return the seconds until a deadline; infinite for 0, none."""
        return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9) if deadline_ns else math.inf

    def close(self, timeout: float = 5.0) -> None:
        """End the store. What has not begun ends with Closed; what is under way ends as usual. Files stay open.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """
        self._closed = True
        self._end_once(self._end)
        self._close_context(timeout)

    def _end(self) -> None:
        self._leave_context()
        if self._core.forked:
            self._root.close()  # a thread that this process lacks may have the lock
            return
        self._queue.close()
        with self._root_lock:
            self._root.close()
        if self._here is not None:
            self._here.close()

    def __del__(self) -> None:
        # The constructor may have raised, or a signal's handler in the middle of close().
        queue = getattr(self, "_queue", None)
        if queue is None or self._ended:
            return
        self._closed = self._ended = True
        if not self._core.forked:
            queue.close()
        self._drop_context()

    def __repr__(self) -> str:
        return f"<Store {self.folder!r} by {self.engine}{', closed' if self._closed else ''}>"

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        """Lend a descriptor of the folder, which nobody closes meanwhile.

        Raises:
            Closed: the Store was closed meanwhile.
        """
        with self._root_lock:
            self.check_usable()
            root = duplicate(self._root.fileno())
        with root:
            yield root.fileno()

    def _at_once(self, kind: str, path: str, do: Callable[[], T]) -> Operation[T]:
        """Do something that takes no longer than a few calls of the system, and return its Operation, which has ended.

        Raises:
            Closed: the Store is closed.
        """
        self.check_usable()
        try:
            return self._finished(kind, do())
        except ZerohopError as error:
            return self._failed(kind, error)
        except OSError as error:
            return self._failed(kind, failures.of_os(error, kind, path))

    def _requires(self, direct: bool | None) -> bool:
        if self.require is not None and direct is False:
            raise ValueError('direct=False: the store was opened with require="direct"')
        return self.require is not None


def _where(view: AnyMemory) -> tuple[Any, int, int]:
    """Return the memory as native code knows it, and the part of it."""
    if isinstance(view, ImportedIov):
        return view.reached, view.start, view.nbytes
    return region_of(view), offset_of(view), view.nbytes
