"""Declares ioring, through which programs for 3FS read and write."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from zerohop.compat.hf3fs.io_ring import IoRing
from zerohop.compat.hf3fs.iovec import place_of
from zerohop.config.checks import check_int, check_seconds
from zerohop.shown import shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from zerohop.compat.hf3fs.iovec import iovec

# Sizes of what 3FS keeps of a ring in shared memory: for each entry, and once.
_ENTRY_BYTES: Final = 56 + 24 + 16
_RING_BYTES: Final = 16 + 32 + 4096


class IorPriority:
    """Names the priorities of 3FS, which have no effect here."""

    HIGH = -1
    NORMAL = 0
    LOW = 1


class ioring:  # noqa: N801 - 3FS's name
    """Represents a ring of 3FS. Thread-safe; 3FS's ``prepare`` is not."""

    def __init__(
        self,
        hf3fs_mount_point: str,
        entries: int,
        for_read: bool = True,
        io_depth: int = 0,
        priority: int | None = None,
        timeout: int | None = None,
        numa: int = -1,
        flags: int = 0,
    ) -> None:
        """Make a ring; arguments and errors as for ``make_ioring``."""
        if priority is not None:
            check_int("priority", priority, IorPriority.HIGH, IorPriority.LOW)
        milliseconds = 0 if timeout is None else timeout
        self._ring = IoRing(hf3fs_mount_point, entries, for_read, io_depth, milliseconds, numa, flags)

    @staticmethod
    def size_for_entries(entries: int) -> int:
        """Return how much shared memory 3FS takes for such a ring, about; here it takes none of the caller's."""
        return (check_int("entries", entries, 1) + 1) * _ENTRY_BYTES + _RING_BYTES

    @property
    def entries(self) -> int:
        """Return how many transfers may be prepared, or under way, or have ended with their results not taken yet."""
        return self._ring.entries

    def prepare(self, iov: iovec, read: bool, fd: int, off: int, userdata: Any = None) -> Self:
        """Add a transfer between all bytes of ``iov`` and a file; return the ring.

        Args:
            iov: an iovec or a slice of one. ``wait`` returns this very object.
            read: as ``for_read`` of the ring.
            fd: a registered descriptor.
            off: offset in the file.
            userdata: any object, which the iovec has when it is returned. The ring keeps it until then.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            StorageError: an OSError. EBADF: the descriptor is not registered, or is another file's by now; EACCES: it
                does not read, or write; EAGAIN: the ring is full.
            Closed: the ring was destroyed.
        """
        buffer, at = place_of(iov)
        self._ring.add(buffer.iov.memory, at, iov.nbytes, read=read, fd=fd, offset=off, payload=(iov, userdata))
        return self

    def submit(self) -> Self:
        """Begin transfers, in batches as ``io_depth`` says, and return the ring."""
        self._ring.submit()
        return self

    def wait(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | timedelta | None = None
    ) -> list[iovec]:
        """Begin what was prepared, wait for results, and return the iovecs, each with ``result`` and ``userdata``.

        Results come in the order in which transfers end. Where fewer than ``min_results`` can come, it returns those.

        Args:
            max_results: the most that are returned; None, or less than ``min_results``: ``min_results``, or one.
            min_results: results to wait for; 0: those that are there.
            timeout: seconds, or a timedelta; None: no limit. When it has passed, the results that are there are
                returned.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            Closed: the ring was destroyed.
        """
        least = check_int("min_results", min_results, 0)
        most = max(least, 1, 0 if max_results is None else check_int("max_results", max_results, 0))
        done = []
        for _, result, (iov, userdata) in self._ring.wait(most, least, _seconds(timeout)):
            iov.result, iov.userdata = result, userdata
            done.append(iov)
        return done

    def destroy(self) -> None:
        """End the ring. What was not begun is dropped; results are lost."""
        self._ring.destroy()


def _seconds(timeout: float | timedelta | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        return max(0.0, timeout.total_seconds())
    try:
        return check_seconds("timeout", timeout)
    except TypeError:
        raise TypeError(f"timeout is a number of seconds, a timedelta or None, not {shown(timeout)}") from None
