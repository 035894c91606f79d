"""Declares Lane, this side's end of one lane of a Connection. Used on the control thread."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

from zerohop._native import NativeError

if TYPE_CHECKING:
    from typing import Any

    from zerohop._native import Domain, Endpoint
    from zerohop.core.lanes.path_choice import Cost


class State(enum.Enum):
    """Names the states of this side's end of a lane."""

    OPENING = "being opened"
    UP = "up"
    DOWN = "down"


class Lane:
    """Holds this side's end of one provider's link inside a Connection.

    Attributes:
        number: name of the lane in this Connection, the same at both sides.
        messages: whether messages and notifications take this lane.
        mine: whether this side opened it.
        domains: the NIC ports that it uses, the first one for small transfers; empty if the provider has no NICs.
        rails: for each of these ports, the place in the peer's list of the peer's NIC at the other end.
        cost: the cost that the endpoint states, once the lane is up.
    """

    def __init__(
        self,
        number: int,
        provider: str,
        endpoint: Endpoint,
        *,
        messages: bool,
        mine: bool,
        domains: tuple[Domain, ...] = (),
        rails: tuple[int, ...] = (),
    ) -> None:
        self.number = number
        self.provider = provider
        self.endpoint = endpoint
        self.messages = messages
        self.mine = mine
        self.domains = domains
        self.rails = rails
        self.cost: Cost | None = None
        self.state = State.OPENING
        # Whether this end is connected to the other.
        self.connected = False
        # Whether the other end exists, and is connected, too, if the peer opened the lane.
        self.answered = False
        # Whether this side has sent LaneReady.
        self.said_ready = False
        # Whether the peer connects the socket of a tcp lane.
        self.inviting = False
        # The work in progress that opens the lane.
        self.task: asyncio.Task[None] | None = None
        # Done when the lane is up, or could not be opened.
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.up.add_done_callback(retrieve)
        # The peer's NICs that are why it could not be opened.
        self.blamed: tuple[int, ...] = ()
        # Whether the lane went down and this side, the peer, or both have placed all data that came over it.
        self.local_done = self.peer_done = False
        self.drained = asyncio.Event()

    def close_end(self) -> None:
        """Cancel the work that opens the lane, and begin to destroy this end."""
        if self.task is not None:
            self.task.cancel()
        try:
            self.endpoint.close(reset=True)
        except NativeError:  # the engine is closed, and the lane with it
            pass

    def __repr__(self) -> str:
        return f"<Lane {self.number} over {self.provider}, {self.state.value}>"


def retrieve(future: asyncio.Future[Any]) -> None:
    """Fetch the exception of a future that nobody may wait for any more, so that asyncio does not warn of it."""
    if not future.cancelled():
        future.exception()
