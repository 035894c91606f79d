"""Declares Store, a folder whose files are read into registered memory and written from it."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.config.checks import check_int
from zerohop.core.face import Memory, View
from zerohop.shown import shown
from zerohop.storage import failures
from zerohop.storage.beneath import open_beneath, parent_of, refused
from zerohop.storage.completion import RingFlags
from zerohop.storage.file_engine import FileEngine
from zerohop.storage.iov import Iov
from zerohop.storage.opening import of_descriptor, opened
from zerohop.storage.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zerohop.core.face import Context, Local, Operation
    from zerohop.storage.file import File, Mode

_MIB: Final = 1 << 20
_STAGING_BYTES: Final = 64 * _MIB
_MOST_STAGING_BYTES: Final = 1 << 40
_MOST_THREADS: Final = 256


def open_store(
    where: str | os.PathLike[str],
    *,
    ctx: Context | None = None,
    engine: Literal["auto", "threads"] = "auto",
    threads: int = 8,
    staging_bytes: int = _STAGING_BYTES,
    timeout: float | None = None,
    **settings: Any,
) -> Store:
    """Open a folder of this machine as a Store.

    Args:
        where: the folder.
        ctx: the Context whose memory is read into; it stays open. None: a new one, which is closed with the Store.
        engine: ``"auto"``: io_uring, or threads where the system refuses it (``Store.engine`` tells which);
            ``"threads"``: threads in any case.
        threads: the most threads that read and write where io_uring does not.
        staging_bytes: bytes of host memory that bytes to and from GPUs pass through. They are taken when the first such
            transfer begins, and are never more. Full buffers make later transfers wait, and are no error.
        timeout: seconds for each operation unless the call says otherwise, ``math.inf`` for none; None: the Context's.
        settings: arguments of Context, for a new one.

    Raises:
        StorageError: there is no such folder, or it may not be read.
        ValueError, TypeError: an argument makes no sense; the errors of Context.
        LimitReached: this process has no descriptor or thread left that it needs.
        Closed: the Context is closed.
    """
    return Store(where, ctx, engine, threads, staging_bytes, timeout, settings)


class Store(FileEngine):
    """Represents a folder. Thread-safe; usable with and without asyncio; a context manager.

    Paths of files count from the folder, with or without a slash before them, and never lead out of it: the kernel
    refuses ``..``, links and renames that would (EXDEV).

    Attributes:
        context: the Context whose memory is read into.
        folder: path of the folder.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        ctx: Context | None,
        engine: str,
        threads: int,
        staging_bytes: int,
        timeout: float | None,
        settings: dict[str, Any],
    ) -> None:
        """Use ``open_store``."""
        self.folder = os.fspath(where) if isinstance(where, os.PathLike) else where
        if not isinstance(self.folder, str):
            raise TypeError(f"where is the path of a folder, as a string or a Path, not {type(self.folder).__name__}")
        if engine not in ("auto", "threads"):
            raise ValueError(f'engine is "auto" or "threads", not {shown(engine)}')
        check_int("threads", threads, 1, _MOST_THREADS)
        check_int("staging_bytes", staging_bytes, _MIB, _MOST_STAGING_BYTES)
        try:
            self._root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise failures.of_os(error, "open_store", self.folder) from None
        self._root_lock = threading.Lock()
        self._close_root = weakref.finalize(self, os.close, self._root)
        try:
            _check_openat2(self._root)
            super().__init__(
                ctx, settings, timeout, threads=threads, staging_bytes=staging_bytes, uring=engine == "auto"
            )
        except BaseException:
            self._close_root()
            raise
        self._join_context()

    def open(self, path: str, mode: Mode = "r", *, direct: bool | None = None) -> Operation[File]:
        """Open a file; value: the File.

        Args:
            path: path of the file within the store.
            mode: ``"r"``: read; ``"r+"``: read and write; ``"w"``: read and write, emptied or made first; ``"x"``: the
                same, but there must be no such file.
            direct: whether reads and writes go past the page cache where offset, length, memory and file system allow
                that; None: reads of bytes that the cache does not have, and writes of 1 MiB and more.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            Closed: the Store is closed.
            StorageError: the system refused; from the Operation, as are LimitReached and Unsupported.
        """
        return self.at_once("open", path, lambda: self._opened(path, mode, direct))

    def file_of(self, fd: int, *, direct: bool | None = None) -> Operation[File]:
        """Return a File of a regular file that is open already, wherever it lies; value: the File.

        It has descriptors of its own: the caller's stays the caller's, and may be closed.

        Args:
            fd: the descriptor. The File reads and writes as far as it may.
            direct: as for ``open``.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            Closed: the Store is closed.
            StorageError: it is no descriptor of a regular file; from the Operation, as is LimitReached.
        """
        return self.at_once("file_of", "", lambda: of_descriptor(self, fd, direct))

    def iov(self, nbytes: int, device: str = "host") -> Iov:
        """Allocate memory for transfers with files; done with ``iov.close()``.

        Args:
            nbytes: length in bytes, at least 1.
            device: ``"host"`` or a device's name.

        Raises:
            TypeError, ValueError, RegistrationFailed, LimitReached: as ``Context.alloc``.
            Closed: the Store is closed.
        """
        self.check_usable()
        return self.new_iov(self.context.alloc(nbytes, device), owned=True)

    def wrap(self, x: Local | Iov) -> Iov:
        """Make an Iov of memory that is there: a Memory, a View, a tensor or another array, or another Iov.

        Raises:
            TypeError, ValueError, Unsupported, RegistrationFailed: as ``Context.register``.
            Closed: the Store or the memory is closed.
        """
        self.check_usable()
        return self.new_iov(self.memory_of(x), owned=not isinstance(x, (Memory, View, Iov)))

    def ring(
        self,
        entries: int,
        *,
        for_read: bool = True,
        io_depth: int = 0,
        batch_wait: float = 0.0,
        priority: Literal["high", "normal", "low"] = "normal",
        flags: RingFlags = RingFlags.NONE,
    ) -> Ring:
        """Return a Ring for many small reads, or writes, at a time.

        Args:
            entries: transfers that may be prepared, or under way, or have ended with their results not taken yet.
            for_read: whether it reads; otherwise it writes.
            io_depth: transfers of a batch; 0: all that are submitted together; negative: as many at most (see Ring).
            batch_wait: seconds after which a batch begins that is not full; 0: it does not begin by itself.
            priority: transfers of a ring with a higher one begin first where not all can be under way. io_uring tells
                the disk's scheduler, too.
            flags: see RingFlags.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            Closed: the Store is closed.
        """
        self.check_usable()
        return Ring(self, entries, for_read, io_depth, batch_wait, priority, flags)

    def listdir(self, path: str = "") -> Operation[list[str]]:
        """List the names in a folder of the store, in no order; errors as those of ``open``."""

        def names() -> list[str]:
            with self._folder() as root:
                fd = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                return os.listdir(fd)  # noqa: PTH208 - a Path cannot name a folder by its descriptor
            finally:
                os.close(fd)

        return self.at_once("listdir", path, names)

    def stat(self, path: str) -> Operation[os.stat_result]:
        """Describe a file or folder, as ``os.stat`` does; errors as those of ``open``."""

        def look() -> os.stat_result:
            with self._folder() as root:
                fd = open_beneath(root, path, os.O_PATH)
            try:
                return os.stat(fd)  # noqa: PTH116 - a Path cannot name a file by its descriptor
            finally:
                os.close(fd)

        return self.at_once("stat", path, look)

    def unlink(self, path: str) -> Operation[None]:
        """Remove a file; errors as those of ``open``."""
        return self._in_parent("unlink", path, lambda parent, name: os.unlink(name, dir_fd=parent))

    def mkdir(self, path: str) -> Operation[None]:
        """Make a folder; errors as those of ``open``."""
        return self._in_parent("mkdir", path, lambda parent, name: os.mkdir(name, dir_fd=parent))

    def rmdir(self, path: str) -> Operation[None]:
        """Remove an empty folder; errors as those of ``open``."""
        return self._in_parent("rmdir", path, lambda parent, name: os.rmdir(name, dir_fd=parent))

    def rename(self, old: str, new: str) -> Operation[None]:
        """Rename a file or folder, which replaces a file of the new name; errors as those of ``open``."""

        def to_new(parent: int, name: str) -> None:
            try:
                with self._folder() as root:
                    other, new_name = parent_of(root, new)
            except OSError as error:
                raise failures.of_os(error, "rename", new) from None
            try:
                os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=other)
            finally:
                os.close(other)

        if not isinstance(new, str):
            raise TypeError(f"a path is a string, not {type(new).__name__}")

        return self._in_parent("rename", old, to_new)

    def close(self, timeout: float = 5.0) -> None:
        """End the store. What has not begun ends with Closed; what is under way ends as usual. Files stay open.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """
        if not self._closed:
            self._closed = True
            self._leave_context()
            if not self._core.forked:
                self._queue.close()
                with self._root_lock:
                    self._close_root()
            else:
                self._close_root()  # a thread that this process lacks may have the lock
        self._close_context(timeout)

    def __del__(self) -> None:
        # The constructor may have raised.
        if getattr(self, "_closed", True):
            return
        self._closed = True
        if not self._core.forked:
            self._queue.close()
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
            root = os.dup(self._root)
        try:
            yield root
        finally:
            os.close(root)

    def _opened(self, path: str, mode: str, direct: bool | None) -> File:
        with self._folder() as root:
            return opened(self, root, path, mode, direct)

    def _in_parent(self, kind: str, path: str, do: Callable[[int, str], None]) -> Operation[None]:
        def work() -> None:
            with self._folder() as root:
                parent, name = parent_of(root, path)
            try:
                do(parent, name)
            finally:
                os.close(parent)

        return self.at_once(kind, path, work)


def _check_openat2(root: int) -> None:
    """Raise Unsupported where paths cannot be kept within the folder, whose descriptor is given."""
    try:
        os.close(open_beneath(root, "", os.O_PATH))
    except PermissionError:  # of the call itself: the folder is open already
        raise refused() from None
