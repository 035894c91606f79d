"""Declares Transfer, ranges that a server moves between a file and memory of this side."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import Reason, Status
from zerohop.core.face import is_open
from zerohop.errors import ProtocolError, ZerohopError, from_native
from zerohop.storage import wire
from zerohop.storage.completion import RECORD

if TYPE_CHECKING:
    from zerohop.storage.operation import ServedPath
    from zerohop.storage.remote.lending import Lent
    from zerohop.storage.remote.moves import Moves
    from zerohop.storage.remote.remote_file import RemoteFile
    from zerohop.storage.serving.pieces import Numbers

# Statuses that no transfer ends with.
_NO_END: Final = (Status.PENDING.value, Status.WOULD_BLOCK.value)


class Transfer:
    """Moves ranges, by one Move of the server's for each ``wire.MOST_RANGES`` of them. On the control thread."""

    def __init__(
        self,
        moves: Moves,
        file: RemoteFile,
        lent: Lent,
        ranges: tuple[Numbers, Numbers, Numbers],
        *,
        writes: bool,
        priority: int,
        deadline_ns: int = 0,
        path: ServedPath | None = None,
    ) -> None:
        """Begin nothing yet. Any thread may call this.

        Args:
            moves: the conversation with the server.
            file: the file.
            lent: the memory.
            ranges: offsets in the file, offsets in what the handle names, and lengths.
            writes: whether the file is written.
            priority: as in wire.Move.
            deadline_ns: on the monotonic clock; 0: none.
            path: gets the way that the bytes have taken.
        """
        self._moves = moves
        self._file = file
        self._lent = lent
        self._ranges = ranges
        self._writes = writes
        self._priority = priority
        self._deadline_ns = deadline_ns
        self._path = path
        firsts = range(0, len(ranges[2]), wire.MOST_RANGES)
        self._parts = [(moves.new_number(), slice(first, first + wire.MOST_RANGES)) for first in firsts]
        self._sent: set[int] = set()
        # Ranges to cancel, of Moves that the server has not heard of yet; None: all of a Move.
        self._cancelled: dict[int, set[int] | None] = {}

    async def run(self) -> np.ndarray[Any, Any]:
        """Return a record for each range (completion.py), in order, whose userdata is its number.

        It comes when the server does not use the memory any more.
        """
        lengths = self._ranges[2]
        records = np.zeros(len(lengths), RECORD)
        records["userdata"] = np.arange(len(lengths))
        moving = [self._move(number, part, records[part]) for number, part in self._parts]
        # All of them: the server may still use the memory for one when another has failed.
        for failure in await asyncio.gather(*moving, return_exceptions=True):
            if isinstance(failure, BaseException):
                if isinstance(failure, ZerohopError) and not is_open(self._lent.view):
                    raise from_native(Status.CLOSED.value, Reason.REVOKED.value, operation="transfer") from None
                raise failure
        denied = records["status"] == Status.ACCESS_DENIED.value
        if denied.any() and not is_open(self._lent.view):
            records["status"][denied], records["reason"][denied] = Status.CLOSED.value, Reason.REVOKED.value
        return records

    def cancel(self, chosen: Numbers | None = None) -> None:
        """End these ranges, or all. ``run`` returns as usual."""
        for number, part in self._parts:
            some = None
            if chosen is not None:
                some = {*(chosen[(chosen >= part.start) & (chosen < part.stop)] - part.start).tolist()}
                if not some:
                    continue
            if number in self._sent:
                self._moves.tell(_cancel(number, some))
            else:
                before = self._cancelled.get(number, set())
                self._cancelled[number] = None if some is None or before is None else before | some

    async def _move(self, number: int, part: slice, records: np.ndarray[Any, Any]) -> None:
        async with self._moves.moving:
            cancelled = self._cancelled.get(number, set())
            if cancelled is None:
                records["status"] = Status.CANCELLED.value
                return
            offsets, at, lengths = (each[part].astype("<i8").tobytes() for each in self._ranges)
            left = (self._deadline_ns - time.monotonic_ns()) / 1e9 if self._deadline_ns else 0.0
            seconds = max(1e-6, left) if self._deadline_ns else 0.0
            request = wire.Move(
                number,
                self._file.number,
                self._writes,
                self._priority,
                self._lent.handle,
                offsets,
                at,
                lengths,
                seconds,
            )
            if cancelled:  # the message goes behind the request
                asyncio.get_running_loop().call_soon(self._moves.tell, _cancel(number, cancelled))
            self._sent.add(number)
            answer = await self._moves.ask_now(request, wire.Moved, "transfer", "")
        _take_results(answer, self._ranges[2][part], records, writes=self._writes)
        if self._path is not None:
            self._path.took(answer.how)


def _cancel(number: int, ranges: set[int] | None) -> wire.Cancel:
    """Return the message that cancels some ranges of a Move, or all."""
    return wire.Cancel(number, b"" if ranges is None else np.array(sorted(ranges), "<i8").tobytes())


def _take_results(answer: wire.Moved, lengths: Any, records: Any, *, writes: bool) -> None:
    """Put what a server told into the records of some ranges."""
    count = len(lengths)
    sizes = len(answer.done), len(answer.errors), len(answer.outcomes)
    if any(size not in (0, of * count) for size, of in zip(sizes, (8, 4, 2), strict=True)):
        raise ProtocolError("malformed: results of the storage service")
    records["done"] = np.frombuffer(answer.done, "<i8") if answer.done else lengths
    if bool(((records["done"] < 0) | (records["done"] > lengths)).any()):
        raise ProtocolError("malformed: results of the storage service")
    records["result"] = records["done"]
    if answer.outcomes:
        outcomes = np.frombuffer(answer.outcomes, np.uint8).reshape(count, 2)
        if bool(np.isin(outcomes[:, 0], _NO_END).any()):
            raise ProtocolError("malformed: a transfer that has ended otherwise than any does")
        records["status"], records["reason"] = outcomes[:, 0], outcomes[:, 1]
    if writes and bool(((records["status"] == 0) & (records["done"] < lengths)).any()):
        raise ProtocolError("malformed: a write that stopped short without an error")
    if answer.errors:
        numbers = np.frombuffer(answer.errors, "<i4")
        failed = (numbers > 0) & (records["status"] != 0)
        records["result"][failed] = -numbers[failed]
