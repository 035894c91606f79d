"""Declares RemoteRing, the native half of a Ring whose transfers a server carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop.core.face import region_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import FileRing as Native
    from zerohop._native import Op
    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.remote_file import RemoteFile


class _Ends(NamedTuple):
    """Holds the file and the memory of transfers that were added in one call."""

    file: RemoteFile
    lent: Lent

    def hold(self) -> None:
        """Count one more use of the memory: native code begins a part of the transfers."""
        self.lent.hold()


class Batch(NamedTuple):
    """Holds transfers of one file and one memory; arrays that are the batch's own.

    Attributes:
        file: the file.
        lent: the memory, which is released once for the batch.
        offsets, at, lengths, userdata, indices: a number for each transfer.
    """

    file: RemoteFile
    lent: Lent
    offsets: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    userdata: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]


class RemoteRing:
    """Carries out the transfers of a Ring by a server, as FileRing says.

    Native code asks for those whose memory and file the server knows by numbers. Messages ask for the others.
    """

    def __init__(
        self,
        native: Native,
        begin: Callable[[RemoteRing], None],
        cancel: Callable[[RemoteRing, int | None], int],
        give_back: Callable[[Lent], None],
        *,
        writes: bool,
        priority: int,
    ) -> None:
        """Begin nothing yet.

        Args:
            native: has the transfers and their results.
            begin: has the control thread ask by messages for the batches that ``take_left`` then returns.
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
        keep, region = _Ends(file, memory), region_of(memory.view)
        try:
            numbers = file.lane_number, memory.number and memory.number.number
            added = self._native.prepare_served(*numbers, keep, region, part_offset, part_nbytes, *arrays)
        except BaseException:
            # A signal's handler may have raised after native code has taken it.
            if not self._native.keeps(keep):
                memory.release()
            raise
        if added is None:
            memory.release()
        self._release_dropped()
        return added

    def submit(self, count: int) -> None:
        """Begin the first transfers that were added."""
        try:
            self._native.submit_served(count)
        finally:
            self._ask_for_left()
            self._release_dropped()

    def _ask_for_left(self) -> None:
        """Ask for transfers that have begun and that nobody has asked for yet.

        Where a signal's handler raises in the middle of this, the next call does it.
        """
        if self._native.has_left:
            self._begin(self)

    def take_left(self) -> list[Batch]:
        """Return the batches that have to be asked for by messages. On the control thread, where no handler runs."""
        batches = []
        for (file, lent), *numbers, index in self._native.take_left():
            offsets, at, lengths, userdata = (np.frombuffer(each, np.int64) for each in numbers)
            batches.append(Batch(file, lent, offsets, at, lengths, userdata, np.frombuffer(index, np.uint32)))
        return batches

    def wait(self, results: int, deadline_ns: int, spin_ns: int) -> bool:
        """Wait until so many results are there, or all that can still come."""
        self._ask_for_left()
        return self._native.wait(results, deadline_ns, spin_ns)

    def end_when(self, results: int, deadline_ns: int) -> Op:
        """Return an Op that ends then."""
        self._ask_for_left()
        return self._native.end_when(results, deadline_ns)

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
            # The Store may have been closed before what was left could be asked for.
            for _, lent in [*native.take_dropped(), *(left[0] for left in native.take_left())]:
                self._give_back(lent)

    def close(self) -> None:
        """Drop what was added, and what has not begun."""
        self._native.close()
        self._release_dropped()
