"""Declares IoRing, which begins transfers in batches as 3FS does, and gives their results."""

from __future__ import annotations

import errno
import math
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop.compat.hf3fs import state
from zerohop.compat.hf3fs.codes import code_of
from zerohop.compat.hf3fs.descriptors import registered
from zerohop.compat.hf3fs.mounts import folder_of, server_of
from zerohop.config.checks import check_flag, check_int
from zerohop.errors import Closed, DeadlineExceeded, StorageError
from zerohop.storage import RingFlags

if TYPE_CHECKING:
    from zerohop.storage.file_engine import AnyMemory

ALLOW_READ_UNCOMMITTED: Final = 1
FORBID_READ_HOLES: Final = 2
_MOST_MS: Final = 2**31 - 1


class Done(NamedTuple):
    """Tells how one transfer has ended: its slot, the bytes or a negative errno, and what was given with it."""

    slot: int
    result: int
    payload: Any


class IoRing:
    """Represents a ring of 3FS. Thread-safe.

    Transfers begin in batches, as ``zerohop.storage.Ring`` says. ``wait`` begins everything that was added.
    """

    def __init__(
        self, mount_point: str, entries: int, for_read: bool, io_depth: int, timeout: int, numa: int, flags: int
    ) -> None:
        """Make a ring; arguments as for ``make_ioring``."""
        folder_of(mount_point)
        check_int("timeout", timeout, 0, _MOST_MS)
        check_int("numa", numa, -1)
        check_int("flags", flags, 0, ALLOW_READ_UNCOMMITTED | FORBID_READ_HOLES)
        forbid = check_flag("for_read", for_read) and flags & FORBID_READ_HOLES
        self._ring = (
            state.current()
            .store(server_of(mount_point)[0])
            .ring(
                entries,
                for_read=for_read,
                io_depth=io_depth,
                batch_wait=timeout / 1000,
                flags=RingFlags.FORBID_HOLES if forbid else RingFlags.NONE,
            )
        )
        self._lock = threading.Lock()
        self._free = list(range(entries - 1, -1, -1))
        self._payloads: list[Any] = [None] * entries
        self._destroyed = False

    @property
    def entries(self) -> int:
        """Return how many transfers may be prepared, or under way, or have ended with their results not taken yet."""
        return self._ring.entries

    def add(
        self,
        memory: AnyMemory,
        at: int,
        nbytes: int,
        *,
        read: bool,
        fd: int,
        offset: int,
        payload: Any,
    ) -> int:
        """Add a transfer of ``nbytes`` between byte ``at`` of memory and byte ``offset`` of a file; return its index.

        Raises:
            TypeError, ValueError: an argument makes no sense; the ring does not go in this direction.
            StorageError: EBADF: the descriptor is not registered; EACCES: it does not read, or write; EAGAIN: the ring
                is full.
            Closed: the ring was destroyed.
        """
        self._check()
        if check_flag("read", read) != self._ring.for_read:
            does, must = ("reads", True) if self._ring.for_read else ("writes", False)
            raise ValueError(f"the ring {does}: read must be {must}")
        check_int("the length", nbytes, 1)
        check_int("an offset in the file", offset, 0, 2**63 - 1 - nbytes)
        if not 0 <= at <= memory.nbytes - nbytes:
            raise ValueError(f"bytes {at} to {at + nbytes} do not lie within the {memory.nbytes} of the memory")
        known = registered(fd)
        if not (known.readable if read else known.writable):
            raise StorageError(
                f"descriptor {abs(fd)} was not opened for {'reading' if read else 'writing'}",
                errno=errno.EACCES,
                filename=known.file.path,
                fix="open it with os.O_RDWR",
                operation="prepare",
            )
        with self._lock:
            if not self._free:
                raise StorageError(
                    f"the ring has {self.entries} entries, which are taken",
                    errno=errno.EAGAIN,
                    fix="take results with wait(), or make the ring larger",
                    operation="prepare",
                )
            index = self._free[-1]
            self._ring.prepare_many(memory, known.file, (offset,), (nbytes,), (at,), (index,))
            self._free.pop()
            self._payloads[index] = payload
        return index

    def submit(self) -> None:
        """Begin as many transfers as ``io_depth`` says.

        Raises:
            Closed: the ring was destroyed, or the process's Context closed.
        """
        self._check()
        self._ring.submit()

    def wait(self, most: int, least: int, timeout: float | None) -> list[Done]:
        """Return up to ``most`` results: once ``least`` are there, all that can still come, or the time has passed.

        Args:
            most: the most that are returned.
            least: results to wait for.
            timeout: seconds; None: no limit.

        Raises:
            Closed: the ring was destroyed, or the process's Context closed.
        """
        self._check()
        self._ring.submit()
        limit = math.inf if timeout is None else timeout
        try:
            completions = self._ring.wait(most, least if limit > 0 else 0, limit)
        except DeadlineExceeded:
            completions = self._ring.wait(most, 0)
        with self._lock:
            return [
                self._taken(each.userdata, each.result if each.error is None else -code_of(each.error))
                for each in completions
            ]

    def destroy(self) -> None:
        """End the ring: what was not begun is dropped, and what is under way uses its memory until it ends."""
        self._destroyed = True
        self._ring.close()

    def _check(self) -> None:
        if self._destroyed:
            raise Closed("the ring was destroyed", fix="make another", operation="ring")

    def _taken(self, index: int, result: int) -> Done:
        payload, self._payloads[index] = self._payloads[index], None
        self._free.append(index)
        return Done(index, result, payload)
