"""Declares Begun, the transfers of one Ring that a server carries out."""

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
    from collections.abc import Callable, Coroutine

    from zerohop.storage.remote.moves import Moves
    from zerohop.storage.remote.remote_ring import Batch, RemoteRing


class Begun:
    """Knows what is under way, so that it can be cancelled from the moment on in which it was submitted."""

    def __init__(self, moves: Moves, told: ToldErrors) -> None:
        self._moves = moves
        self._told = told
        self._under_way: dict[int, tuple[Batch, Transfer]] = {}

    def add(self, ring: RemoteRing, batch: Batch) -> Callable[[], Coroutine[Any, Any, None]]:
        """Note a batch, and return the coroutine function that moves it. The ring's lock is held."""
        ranges = batch.offsets, batch.at, batch.lengths
        transfer = Transfer(self._moves, batch.file, batch.lent, ranges, writes=ring.writes, priority=ring.priority)
        self._under_way[id(batch)] = batch, transfer

        async def run() -> None:
            records = np.zeros(len(batch.userdata), RECORD)
            records["status"], records["reason"] = Status.CLOSED.value, Reason.OWNER_CLOSED.value
            try:
                records = await transfer.run()
            except StorageError as error:
                records["result"], records["status"] = -(error.errno or errno.EIO), Status.FILE_ERROR.value
                records["reason"] = Reason.NONE.value
            except ZerohopError as error:
                records["status"], records["reason"] = errors.status_of(error), self._told.number_of(error)
            except ValueError:  # the server takes a transfer that was checked here for nonsense
                records["status"], records["reason"] = Status.PROTOCOL.value, Reason.NONE.value
            finally:
                self._under_way.pop(id(batch), None)
                records["userdata"], records["index"] = batch.userdata, batch.indices
                ring.complete(records)

        return run

    def cancel(self, userdata: int | None, soon: Callable[..., object]) -> int:
        """Cancel transfers with this userdata, or all; return how many have no result here yet. Any thread.

        ``soon`` calls a function on the control thread.
        """
        found = 0
        for batch, transfer in list(self._under_way.values()):
            meant = None if userdata is None else np.flatnonzero(batch.userdata == userdata)
            count = len(batch.userdata) if meant is None else len(meant)
            if count:
                soon(transfer.cancel, meant)
            found += count
        return found
