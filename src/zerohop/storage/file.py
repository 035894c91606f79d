"""Declares File, an open file of a Store."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop._native import OpenFile
from zerohop.config.checks import check_flag
from zerohop.errors import Closed, out_of_descriptors
from zerohop.shown import shown
from zerohop.storage.beneath import open_beneath
from zerohop.storage.failures import of_errno
from zerohop.storage.numbers import byte_number

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from zerohop.core.face import Local, Memory, Operation, View
    from zerohop.storage.file_engine import FileEngine, Offsets
    from zerohop.storage.iov import Iov

Mode = Literal["r", "r+", "w", "x"]

_FLAGS: Final[dict[str, int]] = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_RDWR | os.O_CREAT,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
_NEVER, _AUTOMATIC, _ALWAYS = range(3)
# Offset and length must be multiples of this where a file system does not say of what (all known ones take less).
_PAGE: Final = 4096
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
# A path that is no regular file must not block.
_NO_WAITING: Final = os.O_NONBLOCK | os.O_NOCTTY
# f_type of tmpfs in struct statfs.
_TMPFS: Final = 0x01021994


def opened(store: FileEngine, root: int, path: str, mode: str, direct: bool | None) -> File:
    """Do Store.open."""
    if mode not in tuple(_FLAGS):  # not in the dict: the argument may be what cannot be a key
        raise ValueError(f'mode is "r", "r+", "w" or "x", not {shown(mode)}')
    if direct is not None:
        check_flag("direct", direct)
    fd = open_beneath(root, path, _FLAGS[mode] | _NO_WAITING)
    past_cache = -1
    try:
        _check_regular(fd, path)
        if mode == "w":
            os.ftruncate(fd, 0)
        # io_uring takes O_NONBLOCK for a promise that no read blocks. On tmpfs, which says no such thing itself, it
        # saves a hand-over to another thread each time. Elsewhere the call that begins a read would block.
        at_once = os.O_NONBLOCK if _is_tmpfs(fd) else 0
        if not at_once:
            os.set_blocking(fd, True)
        if direct is not False:
            past_cache = _without_cache(fd, _FLAGS[mode] & os.O_ACCMODE | at_once)
        how = _NEVER if direct is False else _ALWAYS if direct else _AUTOMATIC
        native = OpenFile(fd, past_cache, _PAGE, how)
    except BaseException:
        os.close(fd)
        if past_cache >= 0:
            os.close(past_cache)
        raise
    return File(store, path, mode, native)


def _check_regular(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise of_errno(
            errno.EINVAL, "open", path, said="not a regular file", fix="name a file that has bytes of its own"
        )


@functools.cache
def _fstatfs() -> Any:
    return ctypes.CDLL(None).fstatfs


def _is_tmpfs(fd: int) -> bool:
    function = _fstatfs()
    facts = (ctypes.c_long * 64)()  # more than a struct statfs has, and its first field is a long
    return bool(function(fd, facts) == 0 and facts[0] == _TMPFS)


def _without_cache(fd: int, flags: int) -> int:
    """Return another descriptor of the same file, which goes past the page cache; -1 if its file system has none."""
    try:
        # By the descriptor, not by the path, which may lead to another file by now.
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if out_of_descriptors(error):
            raise
        return -1


class File:
    """Represents an open file. Thread-safe; a context manager.

    Operations that are under way when it is closed end as usual. The file stays open until they have.

    Attributes:
        store: the Store that it belongs to.
        path: its path within the store.
        mode: the mode that it was opened with.
    """

    def __init__(self, store: FileEngine, path: str, mode: str, native: OpenFile) -> None:
        """Use ``Store.open``."""
        self.store = store
        self.path = path
        self.mode = mode
        self._native: OpenFile | None = native

    @property
    def size(self) -> int:
        """Return the length in bytes now."""
        return self.stat().st_size

    def stat(self) -> os.stat_result:
        """Describe the file, as ``os.fstat`` does.

        Raises:
            Closed: the file is closed.
        """
        return os.fstat(self.native().fd)

    def read_into(
        self, view: Local | Iov, offset: int = 0, *, short: bool = False, timeout: float | None = None
    ) -> Operation[int]:
        """Read as many bytes as ``view`` has, from ``offset`` on; value: their number.

        Holes read as zeros. Done means that all bytes are in ``view``, also if that is a GPU's memory. The bytes of a
        range that is written meanwhile may be old, new or a mixture.

        Args:
            view: Memory, View or array, on the host or on a device; contiguous, and writable.
            offset: offset in the file of the first byte.
            short: take a file that ends earlier; the value is then smaller than ``view.nbytes``. Bytes beyond it are
                unchanged.
            timeout: seconds; None: the Store's.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            Closed: the File, the Store or the memory is closed.
            EndOfFile: the file ends before (from the Operation, as are the others).
            StorageError, DeviceFailed, DeadlineExceeded.
        """
        return self._one("read_into", view, offset, timeout, short=short)

    def write_from(self, view: Local | Iov, offset: int = 0, *, timeout: float | None = None) -> Operation[int]:
        """Write all bytes of ``view`` at ``offset``; value: their number. A file that is shorter grows.

        Done means that every later read sees them. They outlive a crash of this process, and only after ``fsync`` one
        of the machine.

        Args:
            view: as for ``read_into``; it may be read-only.
            offset: as for ``read_into``.
            timeout: as for ``read_into``.

        Raises:
            StorageError: no room is left, or the disk failed; ``bytes_done`` bytes from the start were written. The
                others are those of ``read_into``.
        """
        return self._one("write_from", view, offset, timeout)

    def read_many(
        self,
        view: Local | Iov,
        offsets: Offsets,
        into: Offsets,
        lengths: Offsets,
        *,
        short: bool = False,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read ranges as one Operation: ``lengths[i]`` bytes from ``offsets[i]`` to byte ``into[i]`` of ``view``.

        Its value is the sum of all bytes. The ranges have no order among each other. Otherwise like ``read_into``.
        """
        places = offsets, into, lengths
        return self._transfer("read_many", self.store.memory_of(view), places, timeout, short=short)

    def write_many(
        self, view: Local | Iov, offsets: Offsets, out_of: Offsets, lengths: Offsets, *, timeout: float | None = None
    ) -> Operation[int]:
        """Write ranges as one Operation: ``lengths[i]`` bytes from byte ``out_of[i]`` of ``view`` to ``offsets[i]``.

        Its value is the sum of all bytes. The ranges have no order among each other: where they overlap, the file has
        bytes of either. Otherwise like ``write_from``.
        """
        places = offsets, out_of, lengths
        return self._transfer("write_many", self.store.memory_of(view), places, timeout)

    def truncate(self, size: int) -> Operation[None]:
        """Cut the file, or lengthen it with a hole, to ``size`` bytes; errors as those of ``write_from``."""
        native = self.native()  # which keeps the descriptor open meanwhile
        size = byte_number("size", size)
        return self.store.at_once("truncate", self.path, lambda: os.ftruncate(native.fd, size))

    def fsync(self) -> Operation[None]:
        """Have everything that was written so far outlive a crash of the machine; errors as those of ``write_from``."""
        native = self.native()  # which keeps the descriptor open meanwhile
        return self.store.at_once("fsync", self.path, lambda: os.fsync(native.fd))

    def punch_hole(self, offset: int, nbytes: int) -> Operation[None]:
        """Give the blocks of a range back to the file system; it reads as zeros, and the size stays as it is.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            StorageError: as ``write_from``; EOPNOTSUPP if the file system cannot do that.
        """
        native = self.native()  # which keeps the descriptor open meanwhile
        offset, nbytes = byte_number("offset", offset), byte_number("nbytes", nbytes)
        return self.store.at_once("punch_hole", self.path, lambda: _punch_hole(native.fd, offset, nbytes, self.path))

    def close(self) -> None:
        """Close the file."""
        self._native = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<File {self.path!r}, mode {self.mode!r}{', closed' if self._native is None else ''}>"

    def native(self) -> OpenFile:
        """Return the open file that native code takes.

        Raises:
            Closed: the File or its Store is closed.
        """
        native = self._native
        if native is None:
            raise Closed(f"the File is closed: {self.path!r}", operation="storage")
        self.store.check_usable()
        return native

    def _one(
        self, kind: str, x: Local | Iov, offset: int, timeout: float | None, *, short: bool = False
    ) -> Operation[int]:
        view = self.store.memory_of(x)
        places = (byte_number("offset", offset),), (0,), (view.nbytes,)
        return self._transfer(kind, view, places, timeout, short=short)

    def _transfer(
        self,
        kind: str,
        view: Memory | View,
        places: tuple[Offsets, Offsets, Offsets],
        timeout: float | None,
        *,
        short: bool = False,
    ) -> Operation[int]:
        native, writes = self.native(), kind.startswith("write")
        check_flag("short", short)
        self.check_access(view, kind, writes=writes)
        return self.store.transfer(kind, self.path, native, view, places, timeout, writes=writes, short=short)

    def check_access(self, view: Memory | View, kind: str, *, writes: bool) -> None:
        """Raise an error for a transfer that the mode or the memory forbids."""
        if writes and self.mode == "r":
            raise of_errno(errno.EBADF, kind, self.path, said='the file was opened with mode "r"')
        if not writes and view.readonly:
            raise ValueError("cannot read into read-only memory")


def _punch_hole(fd: int, offset: int, nbytes: int, path: str) -> None:
    function: Any = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if function(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, nbytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
