"""Declares File, an open file of a Store."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.config.checks import check_flag
from zerohop.core.face import NotCopyable
from zerohop.errors import Closed, StorageError
from zerohop.storage.failures import of_errno
from zerohop.storage.numbers import byte_number

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from zerohop.core.face import Local, Operation
    from zerohop.storage.alignment import Alignment
    from zerohop.storage.file_engine import AnyMemory, FileEngine, Offsets
    from zerohop.storage.imported_iov import ImportedIov
    from zerohop.storage.iov import Iov

Mode = Literal["r", "r+", "w", "x"]
# How the system opens a file of each mode; a file that is to be emptied is so once it is found to be regular.
FLAGS: Final[dict[str, int]] = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_RDWR | os.O_CREAT,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class File(NotCopyable):
    """Represents an open file. Thread-safe; a context manager.

    Operations that are under way when it is closed end as usual. The file stays open until they have.

    Attributes:
        store: the Store that it belongs to.
        path: its path within the store; of a descriptor's file (``Store.file_of``), the path that the system tells.
        mode: the mode that it was opened with; of a descriptor's file, what its descriptor allows: ``"r"`` reads,
            ``"r+"`` both, and ``"w"`` writes only.
        alignment: what must be a multiple of how many bytes for a transfer to go past the page cache; None: a server's.
    """

    _copy_refusal = "a File stays in its process, and is not copied; open its path there"

    def __init__(
        self,
        store: FileEngine,
        path: str,
        mode: str,
        native: Any,
        alignment: Alignment | None = None,
        *,
        readable: bool = True,
    ) -> None:
        """Use ``Store.open`` or ``Store.file_of``."""
        self.store = store
        self.path = path
        self.mode = mode
        self.alignment = alignment
        self._readable = readable
        self._native = native

    @property
    def size(self) -> int:
        """Return the length in bytes now."""
        return self.stat().st_size

    def stat(self) -> os.stat_result:
        """Describe the file, as ``os.fstat`` does.

        Raises:
            Closed: the file is closed.
        """
        found: os.stat_result = self.store.file_call("stat", self).result()
        return found

    def read_into(
        self, view: Local | Iov | ImportedIov, offset: int = 0, *, short: bool = False, timeout: float | None = None
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

    def write_from(
        self, view: Local | Iov | ImportedIov, offset: int = 0, *, timeout: float | None = None
    ) -> Operation[int]:
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
        view: Local | Iov | ImportedIov,
        offsets: Offsets,
        lengths: Offsets,
        at: Offsets,
        *,
        short: bool = False,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read ranges as one Operation: ``lengths[i]`` bytes from ``offsets[i]`` to byte ``at[i]`` of ``view``.

        Its value is the sum of all bytes. The ranges have no order among each other. Otherwise like ``read_into``.
        """
        places = offsets, at, lengths
        return self._transfer("read_many", self.store.memory_of(view), places, timeout, short=short)

    def write_many(
        self,
        view: Local | Iov | ImportedIov,
        offsets: Offsets,
        lengths: Offsets,
        at: Offsets,
        *,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write ranges as one Operation: ``lengths[i]`` bytes from byte ``at[i]`` of ``view`` to ``offsets[i]``.

        Its value is the sum of all bytes. The ranges have no order among each other: where they overlap, the file has
        bytes of either. Otherwise like ``write_from``.
        """
        places = offsets, at, lengths
        return self._transfer("write_many", self.store.memory_of(view), places, timeout)

    def truncate(self, size: int) -> Operation[None]:
        """Cut the file, or lengthen it with a hole, to ``size`` bytes; errors as those of ``write_from``."""
        return self._change("truncate", byte_number("size", size))

    def fsync(self) -> Operation[None]:
        """Have everything that was written so far outlive a crash of the machine; errors as those of ``write_from``."""
        return self.store.file_call("fsync", self)

    def punch_hole(self, offset: int, nbytes: int) -> Operation[None]:
        """Give the blocks of a range back to the file system; it reads as zeros, and the size stays as it is.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            StorageError: as ``write_from``; EOPNOTSUPP if the file system cannot do that.
        """
        return self._change("punch_hole", byte_number("offset", offset), byte_number("nbytes", nbytes))

    def hole_in(self, offset: int, nbytes: int) -> Operation[int | None]:
        """Return where in a range the first hole begins, bytes that were never written; None if there is none.

        The range ends where the file does. File systems know holes by their blocks, and some know none. What is written
        or punched meanwhile may count or not.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            StorageError: as ``write_from``.
        """
        return self.store.file_call("hole_in", self, byte_number("offset", offset), byte_number("nbytes", nbytes))

    def close(self) -> None:
        """Close the file."""
        self._native = None  # what is under way keeps it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<File {self.path!r}, mode {self.mode!r}{', closed' if self._native is None else ''}>"

    def native(self) -> Any:
        """Return the open file as its Store knows it.

        Raises:
            Closed: the File or its Store is closed.
        """
        native = self._native
        if native is None:
            raise Closed(f"the File is closed: {self.path!r}", operation="storage")
        self.store.check_usable()
        return native

    def _change(self, kind: str, *args: int) -> Operation[None]:
        self.native()  # raises Closed first
        try:
            self.check_mode(kind, writes=True)
        except StorageError as error:
            return self.store.refused(kind, error)
        return self.store.file_call(kind, self, *args)

    def _one(
        self, kind: str, x: Local | Iov | ImportedIov, offset: int, timeout: float | None, *, short: bool = False
    ) -> Operation[int]:
        view = self.store.memory_of(x)
        places = (byte_number("offset", offset),), (0,), (view.nbytes,)
        return self._transfer(kind, view, places, timeout, short=short)

    def _transfer(
        self,
        kind: str,
        view: AnyMemory,
        places: tuple[Offsets, Offsets, Offsets],
        timeout: float | None,
        *,
        short: bool = False,
    ) -> Operation[int]:
        writes = kind.startswith("write")
        check_flag("short", short)
        self.check_access(view, kind, writes=writes)
        return self.store.transfer(kind, self, view, places, timeout, writes=writes, short=short)

    def check_access(self, view: AnyMemory, kind: str, *, writes: bool) -> None:
        """Raise an error for a transfer that the mode or the memory forbids."""
        self.check_mode(kind, writes=writes)
        if not writes and view.readonly:
            raise ValueError("cannot read into read-only memory")

    def check_mode(self, kind: str, *, writes: bool) -> None:
        """Raise StorageError for a transfer that the mode forbids."""
        if writes and self.mode == "r":
            raise of_errno(errno.EBADF, kind, self.path, said='the file was opened with mode "r"')
        if not writes and not self._readable:
            raise of_errno(errno.EBADF, kind, self.path, said="the file's descriptor is open for writing only")
