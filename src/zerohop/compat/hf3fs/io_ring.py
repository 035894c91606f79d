"""Declares IoRing, which begins transfers in batches as 3FS does, and gives their results."""

from __future__ import annotations

import errno
import itertools
import math
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop.compat.hf3fs import state
from zerohop.compat.hf3fs.codes import code_of
from zerohop.compat.hf3fs.descriptors import registered
from zerohop.compat.hf3fs.log import logger
from zerohop.compat.hf3fs.mounts import folder_of
from zerohop.config.checks import check_flag, check_int
from zerohop.errors import Closed, DeadlineExceeded, StorageError, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.compat.hf3fs.state import Registered
    from zerohop.core.face import Memory, View

ALLOW_READ_UNCOMMITTED: Final = 1
FORBID_READ_HOLES: Final = 2
# What a read gets that would have read a hole, with FORBID_READ_HOLES.
HOLE: Final = -errno.ENODATA
_MOST_ENTRIES: Final = 1 << 20
_MOST_MS: Final = 2**31 - 1


class Done(NamedTuple):
    """Tells how one transfer has ended: its slot, the bytes or a negative errno, and what was given with it."""

    slot: int
    result: int
    payload: Any


class _Io(NamedTuple):
    slot: int
    known: Registered
    memory: Memory | View
    at: int
    nbytes: int
    offset: int


class IoRing:
    """Represents a ring of 3FS. Thread-safe.

    Transfers begin in batches. With ``io_depth`` 0 all that were added begin with ``submit``; with a positive one, as
    many full batches as there are; with a negative one, also what is left, at once or after ``timeout`` milliseconds.
    What is left of a positive one begins after ``timeout``, too, if that is not 0. ``wait`` begins everything.
    """

    def __init__(
        self, mount_point: str, entries: int, for_read: bool, io_depth: int, timeout: int, numa: int, flags: int
    ) -> None:
        """Make a ring; arguments as for ``make_ioring``."""
        folder_of(mount_point)
        self.entries = check_int("entries", entries, 1, _MOST_ENTRIES)
        self.for_read = check_flag("for_read", for_read)
        self.io_depth = check_int("io_depth", io_depth, -_MOST_ENTRIES, _MOST_ENTRIES)
        self.timeout = check_int("timeout", timeout, 0, _MOST_MS)
        check_int("numa", numa, -1)
        self.flags = check_int("flags", flags, 0, ALLOW_READ_UNCOMMITTED | FORBID_READ_HOLES)
        self._ring = state.current().store().ring(entries, for_read=for_read)
        self._lock = threading.Lock()
        self._free = list(range(entries - 1, -1, -1))
        self._payloads: list[Any] = [None] * entries
        self._added: deque[_Io] = deque()
        # Results of what could not begin: index and number.
        self._refused: deque[tuple[int, int]] = deque()
        self._timer: threading.Timer | None = None
        self._destroyed = False

    def add(
        self, memory: Memory | View, at: int, nbytes: int, *, read: bool, fd: int, offset: int, payload: Any
    ) -> int:
        """Add a transfer of ``nbytes`` between byte ``at`` of memory and byte ``offset`` of a file; return its index.

        Raises:
            TypeError, ValueError: an argument makes no sense; the ring does not go in this direction.
            StorageError: EBADF: the descriptor is not registered; EACCES: it does not read, or write; EAGAIN: the ring
                is full.
            Closed: the ring was destroyed.
        """
        self._check()
        if check_flag("read", read) != self.for_read:
            raise ValueError(f"the ring {'reads' if self.for_read else 'writes'}: read must be {self.for_read}")
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
            index = self._free.pop()
            self._payloads[index] = payload
            self._added.append(_Io(index, known, memory, at, nbytes, offset))
        return index

    def submit(self) -> None:
        """Begin as many transfers as ``io_depth`` says.

        Raises:
            Closed: the ring was destroyed, or the process's Context closed.
        """
        self._check()
        with self._lock:
            depth = abs(self.io_depth)
            waits = self.io_depth > 0 or (self.io_depth < 0 and self.timeout > 0)
            self._begin(len(self._added) - (len(self._added) % depth if waits else 0))
            if self._added and self.timeout and self._timer is None:
                self._timer = threading.Timer(self.timeout / 1000, _time_is_up, (weakref.ref(self),))
                self._timer.daemon = True
                self._timer.start()

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
        with self._lock:
            self._begin(len(self._added))
            done = [self._refused.popleft() for _ in range(min(most, len(self._refused)))]
        left, more = max(0, least - len(done)), most - len(done)
        if more:
            limit = math.inf if timeout is None else timeout
            try:
                records = self._ring.wait_array(more, left if limit > 0 else 0, limit)
            except DeadlineExceeded:
                records = self._ring.wait_array(more, 0)
            failed = records["status"] != 0
            # What failed without a number of the system's: the device, or the end of the Store.
            results = np.where(failed & (records["result"] >= 0), -errno.EIO, records["result"])
            done += zip(records["userdata"].tolist(), results.tolist(), strict=True)
        with self._lock:
            return [self._taken(index, result) for index, result in done]

    def destroy(self) -> None:
        """End the ring: what was not begun is dropped, and what is under way uses its memory until it ends."""
        with self._lock:
            self._destroyed = True
            self._cancel_timer()
            self._added.clear()
            self._ring.close()

    def begin_added(self) -> None:
        """Begin all transfers that were added, because their time is up."""
        with self._lock:
            self._timer = None
            self._begin(len(self._added))

    def _check(self) -> None:
        if self._destroyed:
            raise Closed("the ring was destroyed", fix="make another", operation="ring")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _taken(self, index: int, result: int) -> Done:
        payload, self._payloads[index] = self._payloads[index], None
        self._free.append(index)
        return Done(index, result, payload)

    def _begin(self, count: int) -> None:
        """Begin the first ``count`` transfers that were added, in batches. The lock is held."""
        depth = abs(self.io_depth) or count
        while count > 0:
            batch = [self._added.popleft() for _ in range(min(depth, count))]
            count -= len(batch)
            self._begin_batch([io for io in batch if not self._is_refused(io)])
        if not self._added:
            self._cancel_timer()

    def _begin_batch(self, batch: Sequence[_Io]) -> None:
        # Transfers of one file and one memory that follow each other are added together.
        for _, group in itertools.groupby(batch, key=lambda io: (id(io.known.file), id(io.memory))):
            ios = list(group)
            offsets, lengths, at = ([getattr(io, name) for io in ios] for name in ("offset", "nbytes", "at"))
            try:
                self._ring.prepare_many(ios[0].memory, ios[0].known.file, offsets, lengths, at, [io.slot for io in ios])
            except (ZerohopError, ValueError) as error:  # the memory was closed meanwhile, for one
                logger.warning("transfers of %r were not begun: %s", ios[0].known.file.path, str(error))
                self._refused.extend((io.slot, -code_of(error)) for io in ios)
        try:
            self._ring.submit()
        except ZerohopError as error:  # the Store was closed meanwhile; what was added stays added, and never begins
            logger.warning("transfers were not begun: %s", str(error))
            self._refused.extend((io.slot, -code_of(error)) for io in batch)

    def _is_refused(self, io: _Io) -> bool:
        """Refuse a transfer that would read a hole, if that is forbidden."""
        if not (self.for_read and self.flags & FORBID_READ_HOLES):
            return False
        try:
            hole = io.known.file.hole_in(io.offset, io.nbytes).result()
        except ZerohopError as error:
            logger.warning("%r was not read: %s", io.known.file.path, str(error))
            self._refused.append((io.slot, -code_of(error)))
            return True
        if hole is not None:
            logger.info("%r has a hole at %s, within %s bytes from %s", io.known.file.path, hole, io.nbytes, io.offset)
            self._refused.append((io.slot, HOLE))
        return hole is not None


def _time_is_up(ring: weakref.ref[IoRing]) -> None:
    there = ring()
    if there is not None:
        there.begin_added()
