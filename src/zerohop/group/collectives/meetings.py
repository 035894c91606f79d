"""Carries out short collectives in memory that all ranks of a group share.

Each rank has a slot there for the bytes that the others read. A collective is then one meeting: a rank puts bytes into
its slot, waits until all have come, and takes what it needs from the slots. A rank that waits for long leaves word of
it in the memory. It and the rank that comes later then exchange messages, so that a loss, a failure and the deadline
count as they do in collectives by messages.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from zerohop._native import BOARD_SLOT_BYTES
from zerohop.errors import PeerLost
from zerohop.group.collectives.failed import StepsFailed, failed_by_tag
from zerohop.group.collectives.plan import SHARED_MEMORY, algorithm_of
from zerohop.group.collectives.steps import First, until
from zerohop.group.collectives.tags import Failure, number_bits
from zerohop.group.messages import GO_ON

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop._native import Board
    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.operands import Octets

    # The ranks that wait for a message of this one, and whether all have come. None: all have, and nobody waits.
    Arrived: TypeAlias = "tuple[list[int], bool] | None"

T = TypeVar("T")

# Nanoseconds for which a rank looks for the others before it waits for their messages.
_SPIN_NS: Final = 300_000
_ROOT_BITS: Final = 48  # above the number of bytes
_GONE: Final = "rank 0: it has left, or its connection was lost, and the memory that the ranks share is gone with it"


class Meeting(NamedTuple):
    """Describes what a rank does in a meeting.

    Attributes:
        bits: the tag of the collective, without its number.
        nbytes: as for ``algorithm_of``. The tag has only a checksum of it.
        root: the root in the tag.
        put: fills this rank's slot; None: it has nothing for the others.
        take: takes what this rank needs from the slots of all ranks; None: it needs nothing.
    """

    bits: int
    nbytes: int = 0
    root: int = 0
    put: Callable[[Octets], object] | None = None
    take: Callable[[list[Octets]], object] | None = None


def fits(kind: str, meeting: Meeting, size: int) -> bool:
    """Tell whether a meeting carries out a collective where ranks share memory."""
    return algorithm_of(kind, meeting.nbytes, size, shared=True) == SHARED_MEMORY


class Meetings:
    """Holds the meetings of a group, one after the other."""

    def __init__(self, board: Board, rank: int, size: int) -> None:
        """Meet on a board."""
        self._board = board
        self._rank = rank
        self._size = size
        # By the address of the first: rounds take turns between two sets of slots.
        self._sets: dict[int, list[Octets]] = {}
        self._slots: list[Octets] = []

    async def hold(self, call: Call, meeting: Meeting) -> None:
        """Hold a meeting.

        Raises:
            StepsFailed: as ``Call.wait``.
        """
        call.partners.update(range(self._size))
        if call.abandoned:  # this posts nothing, and raises
            await call.wait(call.signal_of((self._rank + 1) % self._size))
        await self._finish(call, meeting, self._come(meeting, call.number, 0))

    def at_once(self, meeting: Meeting, value: T) -> Callable[[int, float | None], Any]:
        """Return what holds a meeting within a call, as ``express`` of ``_begin_collective``."""

        def express(number: int, _: float | None) -> Callable[[Call], Coroutine[Any, Any, T]] | None:
            arrived: Arrived = None
            failed: Exception | None = None
            try:
                arrived = self._come(meeting, number, _SPIN_NS)
                if arrived is None:
                    self._take(meeting)
                    return None
            except Exception as error:  # noqa: BLE001 - the steps raise it, and tell the other ranks
                failed = error

            async def left(call: Call) -> T:
                call.partners.update(range(self._size))
                if failed is not None:
                    raise failed
                await self._finish(call, meeting, arrived)
                return value

            return left

        return express

    def _come(self, meeting: Meeting, number: int, spin_ns: int) -> Arrived:
        """Begin a round, fill this rank's slot, and look for the others for so long."""
        at = self._board.begin()
        if at == 0:
            raise StepsFailed(PeerLost(_GONE, fix=GO_ON, ranks=(0,)), Failure.LOST, 0)
        try:
            self._slots = self._slots_at(at)
            if meeting.put is not None:
                meeting.put(self._slots[self._rank])
            detail = meeting.root << _ROOT_BITS | meeting.nbytes
            return self._board.arrive(meeting.bits | number_bits(number), detail, spin_ns)
        except BaseException:
            self._board.end()
            raise

    def _slots_at(self, at: int) -> list[Octets]:
        slots = self._sets.get(at)
        if slots is None:
            pages = (ctypes.c_uint8 * (self._size * BOARD_SLOT_BYTES)).from_address(at)
            slots = self._sets[at] = list(np.ctypeslib.as_array(pages).reshape(self._size, BOARD_SLOT_BYTES))
        return slots

    async def _finish(self, call: Call, meeting: Meeting, arrived: Arrived) -> None:
        """Wait for those who are late, and end the round."""
        try:
            if arrived is not None:
                await self._wait(call, *arrived)
            self._take(meeting)
        finally:
            self._board.end()

    async def _wait(self, call: Call, waiting: list[int], all_here: bool) -> None:
        """Exchange signals with those who wait and those who are not here; the first failure ends this."""
        ranks = waiting if all_here else waiting + self._board.leave_word()
        receives, sends = [call.signal_of(rank) for rank in ranks], [call.signal(rank) for rank in ranks]
        while len(receives) > 1:
            await until(First([each.operation for each in receives]))
            ended = [each for each in receives if each.operation.done()]
            await call.wait(*ended)
            receives = [each for each in receives if each not in ended]
        await call.wait(*receives, *sends)
        differing = self._board.differing()
        if differing is not None:
            raise failed_by_tag(call.tag, *differing)

    def _take(self, meeting: Meeting) -> None:
        """Take what this rank needs, and end the round."""
        try:
            if meeting.take is not None:
                meeting.take(self._slots)
        finally:
            self._board.end()
