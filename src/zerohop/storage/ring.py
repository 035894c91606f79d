"""Declares Ring, through which many transfers between files and memory are begun and reaped at a time."""

from __future__ import annotations

import operator
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop._native import NativeError
from zerohop.config.checks import check_flag, check_int
from zerohop.core.face import index_array, offset_of, region_of
from zerohop.errors import Closed, DeadlineExceeded, WouldBlock, ZerohopError, from_native
from zerohop.storage.failures import of_errno
from zerohop.storage.file import File
from zerohop.storage.numbers import MOST_BYTES, byte_number

if TYPE_CHECKING:
    from zerohop._native import OpenFile, Region
    from zerohop.core.face import Local, Operation
    from zerohop.storage.file_engine import FileEngine, Offsets
    from zerohop.storage.iov import Iov

_MOST_ENTRIES: Final = 1 << 20
# Nanoseconds after which a wait returns to Python, so that Ctrl-C is heard.
_CTRL_C_NS: Final = 200_000_000
# The records that native code gives (native/storage/sinks.hpp).
_RECORD: Final = np.dtype(
    {
        "names": ["userdata", "result", "status", "reason"],
        "formats": ["i8", "i8", "u1", "u1"],
        "offsets": [0, 8, 16, 17],
        "itemsize": 24,
    }
)


class Completion(NamedTuple):
    """Tells how one transfer of a Ring has ended.

    Attributes:
        userdata: the number that was given with it.
        result: the bytes that it moved, from its start on; less than asked for if the file ended.
        error: the error if it failed, else None.
    """

    userdata: int
    result: int
    error: ZerohopError | None


class _Prepared(NamedTuple):
    """Holds transfers of one file and one memory that are to begin."""

    file: OpenFile
    region: Region
    part: tuple[int, int]
    numbers: list[Any]  # offsets in the file and in the memory, lengths and userdata: each a list or an array
    keep: object


class Ring:
    """Begins transfers and gives their results, many in one call. Thread-safe.

    ``prepare`` and ``prepare_many`` add transfers, ``submit`` begins all that were added, ``wait`` gives results in the
    order in which transfers end. Memory and files stay in use until the result was taken.
    """

    def __init__(self, store: FileEngine, entries: int, for_read: bool) -> None:
        """Use ``Store.ring``."""
        check_int("entries", entries, 1, _MOST_ENTRIES)
        check_flag("for_read", for_read)
        self.store = store
        self.entries = entries
        self.for_read = for_read
        self._native = store.new_ring(entries)
        self._prepared: list[_Prepared] = []
        self._count = 0
        self._closed = False
        self._lock = threading.Lock()

    def prepare(self, view: Local | Iov, file: File, offset: int, userdata: int = 0) -> None:
        """Add a transfer between all of ``view`` and the bytes of ``file`` from ``offset`` on.

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
        memory, number = self.store.memory_of(view), operator.index(userdata)
        self.prepare_many(memory, file, (byte_number("offset", offset),), (memory.nbytes,), (0,), (number,))

    def prepare_many(
        self,
        view: Local | Iov,
        file: File,
        offsets: Offsets,
        lengths: Offsets,
        at: Offsets,
        userdata: Offsets | None = None,
    ) -> None:
        """Add transfers of ``lengths[i]`` bytes between byte ``at[i]`` of ``view`` and byte ``offsets[i]`` of ``file``.

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
        self._check()
        if not isinstance(file, File):
            raise TypeError(f"file is a File, as Store.open gives it, not {type(file).__name__}")
        native, memory = file.native(), self.store.memory_of(view)
        file.check_access(memory, "prepare", writes=not self.for_read)
        places = index_array(offsets, "offsets")
        sizes, starts = index_array(lengths, "lengths"), index_array(at, "offsets in the memory")
        numbers = np.arange(places.size) if userdata is None else index_array(userdata, "userdata")
        if not places.size == sizes.size == starts.size == numbers.size:
            raise ValueError(
                f"{places.size} offsets, {sizes.size} lengths, {starts.size} offsets in the memory, and userdata of "
                f"{numbers.size}"
            )
        if bool(((starts < 0) | (sizes < 0) | (starts > memory.nbytes - sizes)).any()):
            raise ValueError(f"a range does not lie within the {memory.nbytes} bytes of the memory")
        if bool(((places < 0) | (places > MOST_BYTES - sizes)).any()):
            raise ValueError("an offset in the file is negative, or too large")
        arrays = [np.array(places), np.array(starts), np.array(sizes), np.array(numbers)]
        added = _Prepared(native, region_of(memory), (offset_of(memory), memory.nbytes), arrays, (memory, file))
        with self._lock:
            if self._native.taken_up + self._count + places.size > self.entries:
                raise WouldBlock(
                    f"the ring has {self.entries} entries, which are taken",
                    fix="take results with wait(), or make the ring larger",
                )
            self._prepared.append(added)
            self._count += places.size

    def submit(self) -> int:
        """Begin all transfers that were added; return their number.

        Raises:
            Closed: the Ring or the Store is closed; or the memory of a transfer is, which is dropped together with
                those that were added in the same call. All others stay added.
            MemoryError: there is no memory for it; what was added stays added.
        """
        self._check()
        begun = 0
        with self._lock:
            while self._prepared:
                each = self._prepared[0]
                size = each.numbers[0].size
                try:
                    room = self._native.post(each.file, each.region, not self.for_read, *each.part, *each.numbers)
                except (NativeError, ValueError) as error:  # ValueError: the memory is closed, and its region gone
                    self._check()
                    self._drop_first(size)
                    if isinstance(error, NativeError):
                        raise from_native(*error.args, operation="submit") from None
                    raise Closed("the memory of a transfer was closed before submit()", operation="submit") from None
                if not room:
                    raise WouldBlock("the ring is full", fix="take results with wait()", operation="submit")
                self._drop_first(size)
                begun += size
        return begun

    def wait(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> list[Completion]:
        """Return results, as soon as there are ``min_results``, or all that can still come.

        Args:
            max_results: the most that are returned; None: all that are there.
            min_results: results to wait for; 0: those that are there.
            timeout: seconds to wait; None: the Store's.

        Raises:
            DeadlineExceeded: the time has passed, and there are fewer. They stay in the ring.
            ValueError, TypeError: an argument makes no sense.
            Closed: the Store is closed.
        """
        return self._completions(self.wait_array(max_results, min_results, timeout))

    def wait_array(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Return results like ``wait``, as an array with the fields ``userdata``, ``result`` and ``status``.

        A ``result`` is negative where the transfer failed with such an errno, and ``status`` is 0 where it did not.
        """
        most = self._most(max_results, min_results)
        self._wait_until(min(min_results, most), timeout)
        return np.frombuffer(self._native.take(most), _RECORD)

    async def results(
        self, max_results: int | None = None, min_results: int = 1, timeout: float | None = None
    ) -> list[Completion]:
        """Return results like ``wait``, for coroutines: the loop goes on meanwhile."""
        most = self._most(max_results, min_results)
        deadline = self.store.deadline_of(timeout)
        while True:
            if self._native.ready < min(min_results, most):
                await self._enough(min(min_results, most), deadline)
            taken = self._native.take(most)
            # Another task may have taken what this one has waited for.
            if taken or not min_results or not self._native.taken_up:
                return self._completions(np.frombuffer(taken, _RECORD))

    def _most(self, max_results: int | None, min_results: int) -> int:
        """Return the most results that a call takes."""
        check_int("min_results", min_results, 0, _MOST_ENTRIES)
        self.store.check_usable()
        return self.entries if max_results is None else check_int("max_results", max_results, 1, _MOST_ENTRIES)

    def _drop_first(self, size: int) -> None:
        """Take the first of what was added away; the caller holds the lock."""
        del self._prepared[0]
        self._count -= size

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
        if not self._closed:
            self._closed = True
            self._native.close()
            with self._lock:
                self._prepared.clear()
                self._count = 0

    def _check(self) -> None:
        self.store.check_usable()
        if self._closed:
            raise Closed("the Ring is closed", operation="storage")

    def _wait_until(self, results: int, timeout: float | None) -> None:
        deadline = self.store.deadline_of(timeout)
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

    def _completions(self, records: np.ndarray[Any, Any]) -> list[Completion]:
        return [
            Completion(int(each["userdata"]), max(0, int(each["result"])), _error_of(each) if each["status"] else None)
            for each in records
        ]


def _error_of(record: Any) -> ZerohopError:
    result = int(record["result"])
    if result < 0:
        return of_errno(-result, "transfer", "")
    return from_native(int(record["status"]), int(record["reason"]), operation="transfer", bytes_done=result)
