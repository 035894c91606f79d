"""Declares RemoteRing, the native half of a Ring whose transfers a server carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop import errors
from zerohop._native import Status
from zerohop.core.face import region_of
from zerohop.storage.completion import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import FileRing as Native
    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.remote_file import RemoteFile


class Batch(NamedTuple):
    """Holds transfers of one file and one memory; arrays that are the batch's own.

    Attributes:
        file: the file.
        lent: the memory.
        offsets, at, lengths, userdata, indices: a number for each transfer.
    """

    file: RemoteFile
    lent: Lent
    offsets: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    userdata: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]


def _arrays(numbers: list[bytes]) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of what native code gives for transfers that it did not begin."""
    *first, index = numbers
    return [*(np.frombuffer(each, np.int64) for each in first), np.frombuffer(index, np.uint32)]


class RemoteRing:
    """Carries out the transfers of a Ring by a server, as FileRing says.

    Native code asks for those whose memory and file the server knows by numbers. Messages ask for the others.
    """

    def __init__(
        self,
        native: Native,
        begin: Callable[[RemoteRing, Batch], None],
        cancel: Callable[[RemoteRing, int | None], int],
        give_back: Callable[[Lent], None],
        *,
        writes: bool,
        priority: int,
    ) -> None:
        """Begin nothing yet.

        Args:
            native: has the transfers and their results.
            begin: asks for a batch by messages.
            cancel: cancels such batches, as ``Begun.cancel`` does.
            give_back: gives memory back soon; for destructors.
            writes: whether files are written.
            priority: as in wire.Move.
        """
        self._native = native
        self._begin = begin
        self._cancel_begun = cancel
        self._give_back = give_back
        self.writes = writes
        self.priority = priority
        self.take = native.take
        self.wait = native.wait
        self.end_when = native.end_when
        self.refuse = native.refuse

    @property
    def prepared(self) -> int:
        """Return how many transfers were added and have not begun."""
        return self._native.prepared

    @property
    def taken_up(self) -> int:
        """Return how many have begun, and their results were not taken."""
        return self._native.taken_up

    @property
    def ready(self) -> int:
        """Return how many results are there."""
        return self._native.ready

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
    ) -> int | None:
        """Add transfers, and return the index of the first; None, and nothing is done, if there is no room."""
        arrays = file_offsets, memory_offsets, lengths, userdata
        added = None
        try:
            keep, region = (file, memory), region_of(memory.view)
            numbers = file.lane_number, memory.number and memory.number.number
            added = self._native.prepare_served(*numbers, keep, region, part_offset, part_nbytes, *arrays)
        finally:
            if added is None:
                memory.release()
            self._release_dropped()
        return added

    def submit(self, count: int) -> None:
        """Begin the first transfers that were added."""
        left = self._native.submit_served(count)
        self._release_dropped()
        for (_, lent), shared, *_ in left:
            if shared:
                lent.hold()
        for place, ((file, lent), _, *arrays) in enumerate(left):
            try:
                self._begin(self, Batch(file, lent, *_arrays(arrays)))
            except BaseException as error:
                self._fail(left[place:], error)
                raise

    def _fail(self, left: list[Any], error: BaseException) -> None:
        """Give transfers that could not begin their results."""
        status = errors.status_of(error) if isinstance(error, errors.ZerohopError) else Status.NO_MEMORY.value
        for (_, lent), _, *arrays in left:
            *_, userdata, index = _arrays(arrays)
            records = np.zeros(len(userdata), RECORD)
            records["userdata"], records["index"], records["status"] = userdata, index, status
            self.complete(records)
            lent.release()

    def cancel(self, userdata: int | None, first: int) -> tuple[int, int]:
        """Do ``FileRing.cancel``."""
        ended, ended_first = self._native.cancel(userdata, first)
        self._release_dropped()
        number = None if userdata is None else int(np.uint64(userdata).astype(np.int64))
        return ended + self._cancel_begun(self, number), ended_first

    def complete(self, records: np.ndarray[Any, Any]) -> None:
        """Give transfers that were asked for by messages their results."""
        self._native.complete(records.tobytes())

    def _release_dropped(self) -> None:
        for _, lent in self._native.take_dropped():
            lent.release()

    def __del__(self) -> None:
        # The constructor may have raised. Destructors take no locks, which giving memory back does.
        native = getattr(self, "_native", None)
        if native is not None:
            native.close()
            for _, lent in native.take_dropped():
                self._give_back(lent)

    def close(self) -> None:
        """Drop what was added, and what has not begun."""
        self._native.close()
        self._release_dropped()
