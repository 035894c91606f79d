"""Declares Store, files that are read into registered memory and written from it, and what all kinds of it share."""

from __future__ import annotations

import abc
import os
from typing import TYPE_CHECKING, Any, Literal

from zerohop.config.checks import check_flag
from zerohop.core.face import Memory, View
from zerohop.shown import shown
from zerohop.storage.completion import RingFlags
from zerohop.storage.file import FLAGS
from zerohop.storage.file_engine import FileEngine
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import Iov
from zerohop.storage.numbers import times_in_ns
from zerohop.storage.ring import Ring

if TYPE_CHECKING:
    from zerohop.core.face import Local, Operation
    from zerohop.storage.file import File, Mode


class Store(FileEngine):
    """Represents a folder. Thread-safe; usable with and without asyncio; a context manager.

    Paths of files count from the folder, with or without a slash before them, and never lead out of it: the kernel
    refuses ``..``, links and renames that would (EXDEV).

    Attributes:
        context: the Context whose memory is read into.
        folder: path of the folder, or the URL of the server that has it.
    """

    _copy_refusal = "a Store stays in its process, and is not copied; open_store() there"

    folder: str

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
        check_path(path)
        if mode not in tuple(FLAGS):  # not in the dict: the argument may be what cannot be a key
            raise ValueError(f'mode is "r", "r+", "w" or "x", not {shown(mode)}')
        if direct is not None:
            check_flag("direct", direct)
        self.check_usable()
        return self.open_file(path, mode, direct)

    @abc.abstractmethod
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
        # Unlike an array that is passed to one transfer, one that is wrapped is lent to a server for good.
        memory = FileEngine.memory_of(self, x)
        if isinstance(memory, ImportedIov):
            raise TypeError("memory of another process is an Iov already")
        return self.new_iov(memory, owned=not isinstance(x, (Memory, View, Iov)))

    @abc.abstractmethod
    def import_iov(self, data: bytes) -> Operation[ImportedIov]:
        """Stand for memory of another process; value: the ImportedIov.

        Files are then read into that process's memory, and written from it, by this process: its own processor does
        nothing. Closing it here leaves the memory as it is.

        Args:
            data: what ``iov.export()`` has returned there, or the bytes of another RemoteBuffer.

        Raises:
            TypeError, ProtocolError: the bytes are no handle.
            Closed: the Store is closed.
            Unsupported: this process does not reach the memory by itself; from the Operation, as are PeerLost and
                AccessDenied.
        """

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
        return self._folder_call("listdir", path)

    def stat(self, path: str) -> Operation[os.stat_result]:
        """Describe a file or folder, as ``os.stat`` does; errors as those of ``open``."""
        return self._folder_call("stat", path)

    def readlink(self, path: str) -> Operation[str]:
        """Return where a symbolic link leads, as ``os.readlink`` does: a path that counts from the link's own folder.

        The text may also name what is not there, or lies out of the store. Errors are those of ``open``; EINVAL if it
        is no link.
        """
        return self._folder_call("readlink", path)

    def utime(
        self, path: str, times: tuple[float, float] | None = None, *, ns: tuple[int, int] | None = None
    ) -> Operation[None]:
        """Set when a file or folder was read and written last, as ``os.utime`` does; of a link, where it leads.

        Args:
            path: the file or folder.
            times: both times in seconds, that of reading first; without ``ns``, None: now, by the clock of the machine
                that has the file.
            ns: both in nanoseconds, which are exact.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            StorageError, Closed: as ``open``.
        """
        return self._folder_call("utime", path, numbers=times_in_ns(times, ns))

    def unlink(self, path: str) -> Operation[None]:
        """Remove a file; errors as those of ``open``."""
        return self._folder_call("unlink", path)

    def mkdir(self, path: str) -> Operation[None]:
        """Make a folder; errors as those of ``open``."""
        return self._folder_call("mkdir", path)

    def rmdir(self, path: str) -> Operation[None]:
        """Remove an empty folder; errors as those of ``open``."""
        return self._folder_call("rmdir", path)

    def rename(self, old: str, new: str) -> Operation[None]:
        """Rename a file or folder, which replaces a file of the new name; errors as those of ``open``."""
        return self._folder_call("rename", old, new)

    def _folder_call(self, kind: str, *paths: str, numbers: tuple[int, ...] = ()) -> Operation[Any]:
        for path in paths:
            check_path(path)
        self.check_usable()
        return self.folder_call(kind, *paths, numbers=numbers)

    @abc.abstractmethod
    def open_file(self, path: str, mode: Mode, direct: bool | None) -> Operation[File]:
        """Open a file, whose arguments are checked."""

    @abc.abstractmethod
    def folder_call(self, kind: str, *paths: str, numbers: tuple[int, ...] = ()) -> Operation[Any]:
        """Do one of the calls of names.py, whose arguments are checked."""

    @abc.abstractmethod
    def close(self, timeout: float = 5.0) -> None:
        """End the store. What has not begun ends with Closed; what is under way ends as usual.

        Args:
            timeout: seconds that closing a Context of its own may take.
        """


def check_path(path: object) -> None:
    """Raise TypeError for what is no text, and ValueError for a text that no path can be."""
    if not isinstance(path, str):
        fix = ": pass str(path)" if isinstance(path, os.PathLike) else ""
        raise TypeError(f"a path is a string, not {type(path).__name__}{fix}")
    check_characters("a path", path)


def check_characters(what: str, path: str) -> None:
    """Raise ValueError for a text that no path can be; ``what`` is how the error calls it."""
    if "\0" in path:
        raise ValueError(f"{what} has no null character, as {shown(path)} has")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"{what} has no such character, which no bytes stand for: {shown(path)}") from None
