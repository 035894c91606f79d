"""Declares Begun, the transfers of one Ring that a server is asked for by messages."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import numpy as np

from zerohop import errors
from zerohop._native import Reason, Status
from zerohop.errors import StorageError, ZerohopError
from zerohop.storage.completion import RECORD, ToldErrors
from zerohop.storage.remote.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.storage.remote.moves import Moves
    from zerohop.storage.remote.remote_ring import Batch, RemoteRing


class Moving:
    """Moves a batch, and gives its transfers their results. On the control thread."""

    def __init__(self, begun: Begun, ring: RemoteRing, batch: Batch) -> None:
        self._begun = begun
        self._ring = ring
        self.batch = batch
        ranges = batch.offsets, batch.at, batch.lengths
        self.transfer = Transfer(
            begun.moves, batch.file, batch.lent, ranges, writes=ring.writes, priority=ring.priority
        )
        self._records = np.zeros(len(batch.userdata), RECORD)
        self._records["status"], self._records["reason"] = Status.CLOSED.value, Reason.OWNER_CLOSED.value

    async def run(self) -> None:
        """Move the bytes. The results are known when nothing uses the memory any more."""
        records = self._records
        try:
            self._records = await self.transfer.run()
        except StorageError as error:
            records["result"], records["status"] = -(error.errno or errno.EIO), Status.FILE_ERROR.value
            records["reason"] = Reason.NONE.value
        except ZerohopError as error:
            records["status"], records["reason"] = errors.status_of(error), self._begun.told.number_of(error)
        except ValueError:  # the server takes a transfer that was checked here for nonsense
            records["status"], records["reason"] = Status.PROTOCOL.value, Reason.NONE.value

    def end(self) -> None:
        """Give the results, and the memory back; once, however the work has ended, or if it never began."""
        if self._begun.under_way.pop(self, False):
            self._records["userdata"], self._records["index"] = self.batch.userdata, self.batch.indices
            self.batch.lent.release()
            self._ring.complete(self._records)


class Begun:
    """Knows the batches that are under way, so that they can be cancelled.

    Attributes:
        moves: the conversation with the server.
        told: numbers the errors that the server tells.
        under_way: the batches.
    """

    def __init__(self, moves: Moves, told: ToldErrors) -> None:
        self.moves = moves
        self.told = told
        self.under_way: dict[Moving, bool] = {}

    def add(self, ring: RemoteRing, batch: Batch) -> Moving:
        """Note a batch, and return what moves it. On the control thread."""
        moving = Moving(self, ring, batch)
        self.under_way[moving] = True
        return moving

    def cancel(self, userdata: int | None, soon: Callable[..., object]) -> int:
        """Cancel transfers with this userdata, or all; return how many have no result here yet. Any thread.

        ``soon`` calls a function on the control thread.
        """
        found = 0
        for moving in list(self.under_way):
            numbers: Any = moving.batch.userdata
            meant = None if userdata is None else np.flatnonzero(numbers == userdata)
            count = len(numbers) if meant is None else len(meant)
            if count:
                soon(moving.transfer.cancel, meant)
            found += count
        return found
