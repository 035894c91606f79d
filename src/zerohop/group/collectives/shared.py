"""Finds out whether all ranks of a group are on one host, and maps memory in which they then meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from zerohop._native import BOARD_RANKS, Board
from zerohop.core.face import RemoteBuffer, region_of
from zerohop.errors import ZerohopError
from zerohop.group.collectives import pairs, trees
from zerohop.group.collectives.meetings import Meetings
from zerohop.group.collectives.steps import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Memory, Operation
    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.meetings import Meeting
    from zerohop.group.collectives.operands import Octets

    # Allocates memory of the host, and returns it with a handle for the other ranks.
    Offer = Callable[[int], tuple[Memory, RemoteBuffer]]
    # Maps the memory of a handle, in so many seconds. The value has what reaches it, and what keeps it within reach;
    # None: it cannot be mapped.
    Reach = Callable[[RemoteBuffer, float], Operation[tuple[Any, object] | None]]

T = TypeVar("T")

_HANDLE_BYTES: Final = 512
_LENGTH_BYTES: Final = 2


class Shared:
    """Finds out whether the ranks of a group share memory.

    Attributes:
        agreed: whether they have found out.
        meetings: holds meetings in that memory; None: they share none.
    """

    def __init__(self, rank: int, size: int, offer: Offer, reach: Reach) -> None:
        """Prepare; nothing is sent yet."""
        self.agreed = not 1 < size <= BOARD_RANKS
        self.meetings: Meetings | None = None
        self._rank = rank
        self._size = size
        self._offer = offer
        self._reach = reach
        self._kept: object = None
        self._closed = False

    async def carry_out(
        self, work: Callable[[Call], Coroutine[Any, Any, T]], meeting: Meeting | None, value: T, call: Call
    ) -> T:
        """Do the work of a collective; or, if it fits into shared memory, hold a meeting, and return ``value``."""
        if not self.agreed:
            await self._agree(call)
        meetings = self.meetings
        if meetings is None:
            return await work(call)
        if meeting is None:
            # Other ranks may call a meeting, which waits for all ranks. They are told if this fails.
            call.partners.update(range(self._size))
            return await work(call)
        await meetings.hold(call, meeting)
        return value

    def close(self) -> None:
        """Let go of the memory."""
        self._closed = True
        self.meetings = self._kept = None

    async def _agree(self, call: Call) -> None:
        """Find out, as the first steps of a group's first collective: rank 0 has the memory, and the others map it."""
        call.partners.update(range(self._size))
        octets, view = call.scratch.take(_HANDLE_BYTES + self._size)
        octets.fill(0)
        found: tuple[Board, object] | None = None
        if self._rank == 0 and not call.abandoned:
            found = self._offered(octets)
        await trees.broadcast(call, view[:_HANDLE_BYTES], 0)
        if self._rank != 0:
            found = await self._mapped(octets, call.left_s)
        mine = slice(_HANDLE_BYTES + self._rank, _HANDLE_BYTES + self._rank + 1)
        octets[mine] = found is not None
        await pairs.allgather(call, view[mine], view[_HANDLE_BYTES:])
        if found is not None and octets[_HANDLE_BYTES:].all():
            board, self._kept = found
            self.meetings = Meetings(board, self._rank, self._size)
        # Set last: other threads read it before `meetings`.
        self.agreed = True
        if self._closed:
            self.close()

    def _offered(self, octets: Octets) -> tuple[Board, object] | None:
        """Return a board, and what keeps its memory; None: there is none."""
        try:
            memory, handle = self._offer(Board.bytes_for(self._size))
        except ZerohopError:  # there is no such memory, and messages do without
            return None
        named = bytes(handle)
        if len(named) > _HANDLE_BYTES - _LENGTH_BYTES:
            return None
        text = len(named).to_bytes(_LENGTH_BYTES, "little") + named
        octets[: len(text)] = np.frombuffer(text, np.uint8)
        return Board(region_of(memory), self._size, self._rank), memory

    async def _mapped(self, octets: Octets, left_s: float) -> tuple[Board, object] | None:
        """Map what rank 0 has offered; return what ``_offered`` does."""
        length = int.from_bytes(octets[:_LENGTH_BYTES].tobytes(), "little")
        if length == 0:
            return None
        named = octets[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()
        try:
            operation = self._reach(RemoteBuffer.from_bytes(named), left_s)
            if not operation.done():
                await until(operation)
            found = operation.result(0)
            return None if found is None else (Board(found[0], self._size, self._rank), found[1])
        except (ZerohopError, ValueError):  # it is not mapped, or not any more, and the other ranks are told
            return None
