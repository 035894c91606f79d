"""Declares LaneTable, the lanes of one Connection by their numbers. On the control thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.core.lanes.lane import State
from zerohop.errors import ProtocolError

if TYPE_CHECKING:
    from zerohop.core.lanes.lane import Lane


class LaneTable:
    """Holds the lanes of one Connection from their opening until both sides have placed all that came over them.

    The side that has dialled opens lanes with even numbers, the other side those with odd ones.

    Attributes:
        initiator: whether this side has dialled.
        all: the lanes by number.
        next_mine: the number of the next lane that this side opens.
        last_theirs: the number of the last lane that the peer has opened; -1 before the first.
    """

    def __init__(self, *, initiator: bool) -> None:
        self.initiator = initiator
        self.all: dict[int, Lane] = {}
        self.next_mine = 0 if initiator else 1
        self.last_theirs = -1

    def find(self, number: int) -> Lane | None:
        """Return the lane of this number; None if it is gone. Raise ProtocolError if there never was one."""
        theirs = number % 2 == (1 if self.initiator else 0)
        if number > self.last_theirs if theirs else number >= self.next_mine:
            raise ProtocolError(f"malformed: lane {number}, which nobody has opened")
        return self.all.get(number)

    def down(self) -> list[Lane]:
        """Return the lanes that are down, and over which data may still come; any thread may ask."""
        return [lane for lane in list(self.all.values()) if lane.state is State.DOWN]

    def remove(self, lane: Lane) -> None:
        """Remove a lane over which nothing can come any more."""
        self.all.pop(lane.number, None)
        lane.drained.set()
