"""Declares RemoteRing, the native half of a Ring whose transfers a server carries out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop._native import FileRing as Completions
from zerohop._native import Status
from zerohop.storage.completion import RECORD
from zerohop.storage.numbers import check_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.remote_file import RemoteFile


class Batch(NamedTuple):
    """Holds transfers of one file and one memory; arrays that are the batch's own.

    Attributes:
        file: the file.
        lent: the memory.
        offsets, at, lengths, userdata: a number for each transfer.
    """

    file: RemoteFile
    lent: Lent
    offsets: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    userdata: np.ndarray[Any, Any]

    def split(self, count: int) -> tuple[Batch, Batch]:
        """Return the first transfers, and the others."""
        self.lent.hold()
        arrays = self.offsets, self.at, self.lengths, self.userdata
        first = Batch(self.file, self.lent, *(each[:count] for each in arrays))
        return first, Batch(self.file, self.lent, *(each[count:] for each in arrays))


class RemoteRing:
    """Carries out the transfers of a Ring by a server, as FileRing says."""

    def __init__(
        self,
        completions: Completions,
        begin: Callable[[RemoteRing, Batch], None],
        cancel: Callable[[RemoteRing, int | None], int],
        give_back: Callable[[Lent], None],
        entries: int,
        *,
        writes: bool,
        priority: int,
    ) -> None:
        self._completions = completions
        self._begin = begin
        self._cancel_begun = cancel
        self._give_back = give_back
        self._entries = entries
        self._added: deque[Batch] = deque()
        self._prepared = 0
        self.writes = writes
        self.priority = priority
        self.take = completions.take
        self.wait = completions.wait
        self.end_when = completions.end_when

    @property
    def prepared(self) -> int:
        """Return how many transfers were added and have not begun."""
        return self._prepared

    @property
    def taken_up(self) -> int:
        """Return how many have begun, and their results were not taken."""
        return self._completions.taken_up

    @property
    def ready(self) -> int:
        """Return how many results are there."""
        return self._completions.ready

    def prepare(
        self,
        file: RemoteFile,
        memory: Lent,
        part_offset: int,
        part_nbytes: int,
        file_offsets: Any,
        memory_offsets: Any,
        lengths: Any,
        userdata: Any,
    ) -> bool:
        """Add transfers; False, and nothing is done, if there is no room for them all."""
        arrays = file_offsets, memory_offsets, lengths, userdata
        offsets, at, sizes, numbers = (np.array(each, np.int64) for each in arrays)
        try:
            check_ranges(offsets, at, sizes, part_nbytes, numbers)
        except ValueError:
            memory.release()
            raise
        if self._prepared + self.taken_up + len(sizes) > self._entries:
            memory.release()
            return False
        if len(sizes):
            self._added.append(Batch(file, memory, offsets, at + part_offset, sizes, numbers))
            self._prepared += len(sizes)
        else:
            memory.release()
        return True

    def submit(self, count: int) -> None:
        """Begin the first transfers that were added."""
        while count > 0 and self._added:
            batch = self._added.popleft()
            if len(batch.lengths) > count:
                batch, rest = batch.split(count)
                self._added.appendleft(rest)
            size = len(batch.lengths)
            count -= size
            self._prepared -= size
            self._completions.reserve(size)
            self._begin(self, batch)

    def refuse(self, userdata: int, error: int) -> bool:
        """Give a transfer that is not carried out its result; False if there is no room for it."""
        if self._prepared + self.taken_up >= self._entries:
            return False
        return self._completions.refuse(userdata, error)

    def cancel(self, userdata: int | None, first: int) -> tuple[int, int]:
        """Do ``FileRing.cancel``."""
        number = None if userdata is None else int(np.uint64(userdata).astype(np.int64))
        ended = ended_first = place = 0
        for _ in range(len(self._added)):
            batch = self._added.popleft()
            meant = np.ones(len(batch.userdata), bool) if number is None else batch.userdata == number
            found = int(meant.sum())
            ended_first += int(meant[: max(0, first - place)].sum())
            place += len(meant)
            if found:
                self._completions.reserve(found)
                records = np.zeros(found, RECORD)
                records["userdata"], records["status"] = batch.userdata[meant], Status.CANCELLED.value
                self.complete(records)
                ended += found
            if found < len(meant):
                arrays = (batch.offsets, batch.at, batch.lengths, batch.userdata)
                self._added.append(Batch(batch.file, batch.lent, *(each[~meant] for each in arrays)))
            else:
                batch.lent.release()
        self._prepared -= ended
        return ended + self._cancel_begun(self, number), ended_first

    def complete(self, records: np.ndarray[Any, Any]) -> None:
        """Give transfers that have begun their results."""
        self._completions.complete(records.tobytes())

    def __del__(self) -> None:
        # The constructor may have raised. Destructors take no locks, which giving memory back does.
        for batch in getattr(self, "_added", ()):
            self._give_back(batch.lent)

    def close(self) -> None:
        """Drop what was added, and what has not begun."""
        for batch in self._added:
            batch.lent.release()
        self._added.clear()
        self._prepared = 0
        self._completions.close()
