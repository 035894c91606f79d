"""Declares Ring, through which many transfers between files and memory are begun and reaped at a time."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError
from zerohop.config.checks import check_flag, check_seconds
from zerohop.core.face import Closeable, NotCopyable, index_array
from zerohop.errors import Closed, DeadlineExceeded, WouldBlock, from_native
from zerohop.shown import shown
from zerohop.storage.completion import RECORD, Completion, RingFlags, completions
from zerohop.storage.file import File
from zerohop.storage.numbers import byte_number, count_number, userdata_number

if TYPE_CHECKING:
    from zerohop.core.face import Local, Operation
    from zerohop.storage.file_engine import FileEngine, Offsets
    from zerohop.storage.imported_iov import ImportedIov
    from zerohop.storage.iov import Iov

_MOST_ENTRIES: Final = 1 << 20
_PRIORITIES: Final = {"high": 0, "normal": 1, "low": 2}
# Nanoseconds after which a wait returns to Python, so that Ctrl-C is heard.
_CTRL_C_NS: Final = 200_000_000


class Ring(Closeable, NotCopyable):
    """Begins transfers and gives their results, many in one call. Thread-safe; a context manager.

    ``prepare`` and ``prepare_many`` add transfers, ``submit`` begins all that were added, ``wait`` gives results in the
    order in which transfers end. Each transfer that was added and submitted has one result. Memory and files stay in
    use until it was taken.

    Transfers begin in batches if ``io_depth`` is not 0. Of what was submitted, full batches of ``io_depth`` begin, and
    the rest when it is full, when ``batch_wait`` seconds have passed, or when somebody waits for results. With a
    negative ``io_depth`` the rest begins at once unless ``batch_wait`` says how long it may wait.
    """

    _copy_refusal = "a Ring stays in its process, and is not copied; make another one: store.ring()"

    def __init__(
        self,
        store: FileEngine,
        entries: int,
        for_read: bool,
        io_depth: int,
        batch_wait: float,
        priority: str,
        flags: RingFlags,
    ) -> None:
        """Use ``Store.ring``."""
        self.entries = count_number("entries", entries, 1, _MOST_ENTRIES)
        self.for_read = check_flag("for_read", for_read)
        self.io_depth = count_number("io_depth", io_depth, -_MOST_ENTRIES, _MOST_ENTRIES)
        self.batch_wait = check_seconds("batch_wait", batch_wait)
        if priority not in tuple(_PRIORITIES):  # not in the dict: the argument may be what cannot be a key
            raise ValueError(f'priority is "high", "normal" or "low", not {shown(priority)}')
        if not isinstance(flags, RingFlags):
            raise TypeError(f"flags are RingFlags, not {shown(flags)}")
        if not for_read and flags:
            raise ValueError("a ring that writes takes no flags")
        self.store = store
        self.priority = priority
        self.flags = flags
        self._native = store.new_ring(self.entries, not for_read, _PRIORITIES[priority])
        self._submitted = 0  # the transfers that submit() was called for, and that wait for their batch
        self._timer: threading.Timer | None = None
        self._kept: list[object] = []  # the memory and the files of what was added, which nobody is to close meanwhile
        self._closed = False
        self._lock = threading.Lock()

    def prepare(self, view: Local | Iov | ImportedIov, file: File, offset: int, userdata: int = 0) -> int:
        """Add a transfer between all of ``view`` and the bytes of ``file`` from ``offset`` on.

        Return the transfer's index, which its result has too: how many were added to the ring before, modulo 2**32.

        Args:
            view: Memory, View or array, on the host or on a device.
            file: the file.
            offset: offset in the file.
            userdata: a number that comes back with the result.

        Raises:
            WouldBlock: the ring is full: take results first.
            ValueError, TypeError: an argument makes no sense.
            StorageError: the ring writes, and the file was opened for reading.
            Closed: the Ring, the File, the Store or the memory is closed.
        """
        memory, number = self.store.memory_of(view), userdata_number(userdata)
        return self.prepare_many(memory, file, (byte_number("offset", offset),), (memory.nbytes,), (0,), (number,))

    def prepare_many(
        self,
        view: Local | Iov | ImportedIov,
        file: File,
        offsets: Offsets,
        lengths: Offsets,
        at: Offsets,
        userdata: Offsets | None = None,
    ) -> int:
        """Add transfers of ``lengths[i]`` bytes between byte ``at[i]`` of ``view`` and byte ``offsets[i]`` of ``file``.

        Return the index of the first; the others follow in order, and those that FORBID_HOLES refuses come last.

        Args:
            view: Memory, View or array, on the host or on a device.
            file: the file.
            offsets: one-dimensional array of integers, as are the others, and as long.
            lengths: lengths in bytes.
            at: offsets in ``view``.
            userdata: numbers that come back with the results; None: the position in the arrays.

        Raises:
            WouldBlock, ValueError, TypeError, StorageError, Closed: as ``prepare``.
        """
        if not isinstance(file, File):
            raise TypeError(f"file is a File, as Store.open gives it, not {type(file).__name__}")
        if file.store is not self.store:
            raise ValueError(f"the file {file.path!r} was opened in another Store than the ring")
        memory = self.store.memory_of(view)
        file.check_access(memory, "prepare", writes=not self.for_read)
        file.native()  # raises Closed now, before anything is looked at
        places = index_array(offsets, "offsets")
        sizes, starts = index_array(lengths, "lengths"), index_array(at, "offsets in the memory")
        numbers = np.arange(places.size) if userdata is None else index_array(userdata, "userdata")
        holes: list[int] = []
        if self.flags & RingFlags.FORBID_HOLES and places.size == sizes.size == starts.size == numbers.size:
            bad = np.array([file.hole_in(*each).result() is not None for each in zip(places, sizes, strict=True)], bool)
            holes = numbers[bad].tolist()
            places, sizes, starts, numbers = places[~bad], sizes[~bad], starts[~bad], numbers[~bad]
        with self._lock:
            self._check()
            room = self.entries - self._native.taken_up - self._native.prepared
            # The memory is lent to a server last, because a refused call is to leave nothing behind.
            first = None
            if len(holes) + places.size <= room:
                place = self.store.place_of(file, memory, writes=not self.for_read)
                first = self._native.prepare(*place, places, starts, sizes, numbers)
            if first is None:
                raise WouldBlock(
                    f"the ring has {self.entries} entries, which are taken",
                    fix="take results with wait(), or make the ring larger",
                )
            self._kept.append((memory, file))
            for number in holes:
                self._native.refuse(number % (1 << 64), errno.ENODATA)
            return first

    def submit(self) -> int:
        """Begin the transfers that were added, in batches as ``io_depth`` says; return how many were added.

        A transfer that cannot begin, because its memory was closed, has that as its result.

        Raises:
            Closed: the Ring or the Store is closed.
            MemoryError: there is no memory for it; what has not begun stays added.
        """
        self._check()
        with self._lock:
            added, self._submitted = self._native.prepared - self._submitted, self._native.prepared
            depth = abs(self.io_depth)
            holds = self.io_depth > 0 or (self.io_depth < 0 and self.batch_wait > 0)
            self._begin(self._submitted - (self._submitted % depth if holds else 0))
            if self._submitted and self.batch_wait and self._timer is None:
                self._timer = threading.Timer(self.batch_wait, _time_is_up, (weakref.ref(self),))
                self._timer.daemon = True
                self._timer.start()
        return added

    def cancel(self, userdata: int | None = None) -> int:
        """End transfers with CancelledError; return how many these were.

        A transfer that has ended is as it was, and so is one for which the system has been asked in full: it ends as
        usual, and is not counted. A server may have gone so far with some that are counted: these end as usual, too.
        Each has its result when nothing uses its memory any more.

        Args:
            userdata: cancels transfers with this number; None: all.

        Raises:
            Closed: the Ring or the Store is closed.
        """
        self._check()
        number = None if userdata is None else userdata_number(userdata)
        with self._lock:
            try:
                ended, submitted = self._native.cancel(None if number is None else number % (1 << 64), self._submitted)
            except NativeError as error:
                self._check()
                raise from_native(*error.args, operation="cancel") from None
            self._submitted -= submitted
            return ended

    def wait(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> list[Completion]:
        """Return results, as soon as there are ``min_results``, or all that can still come.

        Several threads and tasks may wait at once. Each gets as many as it has asked for, or waits on; fewer only when
        no more can come.

        Args:
            max_results: the most that are returned; None: all that are there.
            min_results: results to wait for; 0: those that are there.
            timeout: seconds to wait; None: the Store's.

        Raises:
            DeadlineExceeded: the time has passed, and there are fewer. They stay in the ring.
            ValueError, TypeError: an argument makes no sense.
            Closed: the Store is closed.
        """
        return completions(self.wait_array(max_results, min_results, timeout), self.store.told)

    def wait_array(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Return results like ``wait``, as an array with the fields ``userdata``, ``result``, ``status`` and ``index``.

        A ``result`` is negative where the transfer failed with such an errno, and ``status`` is 0 where it did not.
        """
        most, least = self._most_and_least(max_results, min_results)
        self._begin_submitted()
        deadline = self.store.deadline_of(timeout)
        while True:
            if self._native.ready < least:
                self._wait_until(least, deadline)
            taken = self._native.take(most, least)
            # Another thread may have taken what this one has waited for.
            if taken or not least or not self._native.taken_up:
                return np.frombuffer(taken, RECORD)

    async def results(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> list[Completion]:
        """Return results like ``wait``, for coroutines: the loop goes on meanwhile."""
        most, least = self._most_and_least(max_results, min_results)
        self._begin_submitted()
        deadline = self.store.deadline_of(timeout)
        while True:
            if self._native.ready < least:
                await self._enough(least, deadline)
            taken = self._native.take(most, least)
            # Another task may have taken what this one has waited for.
            if taken or not least or not self._native.taken_up:
                return completions(np.frombuffer(taken, RECORD), self.store.told)

    def _most_and_least(self, max_results: int | None, min_results: int) -> tuple[int, int]:
        """Return the most results that a call takes, and for how many it waits."""
        least = count_number("min_results", min_results, 0, _MOST_ENTRIES)
        self.store.check_usable()
        most = self.entries if max_results is None else count_number("max_results", max_results, 1, _MOST_ENTRIES)
        return most, min(least, most)

    def _enough(self, results: int, deadline_ns: int) -> Operation[int]:
        """Return an Operation that ends when so many results are there, or all that can still come."""
        try:
            native = self._native.end_when(results, deadline_ns)
        except NativeError as error:
            self._check()
            raise from_native(*error.args, operation="results") from None
        return self.store.pending("results", native, self)

    def close(self) -> None:
        """Drop what was added, and what has not begun; what is under way still uses its memory until it ends."""
        # All of it at each call: a signal's handler may have cut short an earlier one.
        with self._lock:
            self._closed = True
            self._stop_timer()
            self._native.close()
            self._kept.clear()

    def begin_submitted(self) -> None:
        """Begin what was submitted and waits for its batch to be full, because its time is up."""
        with contextlib.suppress(Closed), self._lock:
            self._timer = None
            if not self._closed:
                self._begin(self._submitted)

    def _begin_submitted(self) -> None:
        if self._submitted:
            with self._lock:
                self._begin(self._submitted)

    def _begin(self, count: int) -> None:
        """Begin the first transfers that were added; the lock is held."""
        before = self._native.prepared
        try:
            self._native.submit(count)
        except NativeError as error:
            self._check()
            raise from_native(*error.args, operation="submit") from None
        finally:
            self._submitted -= before - self._native.prepared
        if not self._submitted:
            self._stop_timer()
        if not self._native.prepared:
            self._kept.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.store.check_usable()
        if self._closed:
            raise Closed("the Ring is closed", operation="storage")

    def _wait_until(self, results: int, deadline: int) -> None:
        native, spin_ns = self._native, self.store.spin_ns
        while True:
            until = time.monotonic_ns() + _CTRL_C_NS
            if native.wait(results, min(until, deadline) if deadline else until, spin_ns):
                self.store.check_usable()
                return
            self.store.check_usable()
            if deadline and time.monotonic_ns() >= deadline:
                raise DeadlineExceeded(
                    f"{native.ready} of {results} results are there", fix="wait again", operation="wait"
                )
            spin_ns = 0


def _time_is_up(ring: weakref.ref[Ring]) -> None:
    there = ring()
    if there is not None:
        there.begin_submitted()
