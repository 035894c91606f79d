"""One lane of a Connection, at this side. On the control thread."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from zerohop._native import Domain, Endpoint
    from zerohop.core.lanes.paths import Cost


class State(enum.Enum):
    """Of a lane, at this side."""

    OPENING = "being opened"
    UP = "up"
    DOWN = "down"


class Lane:
    """One provider's live link inside a Connection; this side's end of it.

    Attributes:
        number: its name in this Connection, the same at both sides.
        messages: whether messages and notifications take it.
        mine: whether this side opened it.
        domains: the NIC ports that it uses, the first for all that is small; none where the provider has no devices.
        rails: the places of the peer's NICs at their other ends, in its list.
        cost: what it says that it costs, once it is up.
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
        # While it is being opened: whether this end is connected to the other; whether the other is made, and where the
        # peer has opened the lane, also connected; and whether this side has said that it is ready.
        self.connected = self.answered = self.said_ready = False
        # Who this side has invited to bring the socket, or what opens it.
        self.inviting = False
        self.task: asyncio.Task[None] | None = None
        # Done when it is up, an error when it never will be; and the peer's NICs that are to blame.
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.up.add_done_callback(retrieve)
        self.blamed: tuple[int, ...] = ()
        # Once it is down: which sides have said that nothing of it is left, and whether both have.
        self.said = self.heard = False
        self.buried = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Lane {self.number} over {self.provider}, {self.state.value}>"


def retrieve(future: asyncio.Future[Any]) -> None:
    """Whoever waited may be gone by the time it fails."""
    if not future.cancelled():
        future.exception()
