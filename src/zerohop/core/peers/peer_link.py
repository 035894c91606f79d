"""Declares PeerLink, the link to a peer together with the conversation that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from zerohop.core.base.peer_process import unknown_process
from zerohop.core.lanes.link import Link

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from zerohop._native import FabricEndpoint
    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.lanes.imported import Import
    from zerohop.core.lanes.lanes import Lanes
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.runtime.runtime import Runtime
    from zerohop.errors import ZerohopError


class After(NamedTuple):
    """Says what is called beside the caller when a call is answered, on the control thread.

    Attributes:
        then: takes the answer before any later message of the peer is handled.
        late: takes an answer that comes after the operation's deadline, or its cancellation, and that nobody gets.
        ended: is called once the peer has answered, or never will; not if the connection was lost before the call.
    """

    then: Callable[[bytes], object] | None = None
    late: Callable[[bytes], object] | None = None
    ended: Callable[[], object] | None = None


NOTHING_AFTER: Final = After()


class Conversation(Protocol):
    """Declares the methods of a Session that other modules use. On the control thread."""

    initiator: bool
    lanes: Lanes

    async def prepare(self, registration: Registration, share: Share) -> None:
        """Take one step towards a path between two memories."""

    def begin_import(self, share: Share, registration: Registration) -> asyncio.Future[None] | None:
        """Ask for the peer's memory if that is all that a path lacks; return the future of its end, else None."""

    async def call(self, service: str, body: bytes, after: After = NOTHING_AFTER) -> bytes:
        """Call a service of the peer, and return its answer."""

    def send(self, service: str, body: bytes) -> None:
        """Call a service of the peer without waiting for the answer."""

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        """Ask the peer to give back shares that it has imported."""

    async def give_back(self) -> None:
        """Give the peer's memory back, and ask for this side's; wait for both a short time."""

    async def say_goodbye(self, text: str) -> None:
        """Tell the peer that this side ends the Connection."""

    def unread(self) -> bool:
        """Tell whether a message of the peer is not handled yet."""

    async def caught_up(self) -> None:
        """Wait until all messages that the peer has sent by now are handled, or the conversation has ended."""

    def said(self) -> ZerohopError | None:
        """Return why the conversation ends, if the peer or a lane that could not be opened has said so."""

    def process(self) -> PeerProcess | None:
        """Return the peer's process; None if it has ended."""

    def break_off(self, error: BaseException) -> None:
        """Lose the link, because a step of the conversation has failed on this side."""

    def end(self, error: ZerohopError) -> None:
        """End the conversation, because the link is lost."""


class PeerLink(Link):
    """Adds to Link the conversation with the peer.

    Attributes:
        session: the conversation; None before it begins and once the link is lost.
        partner: the other end, of a Context that talks to itself.
        parting: the task that closes the link from this side.
        ending: the conversation of a lost link, until all that waits for the peer has ended.
        queue_pairs: this side's ends of the queue pairs that kernels of the peer post to, by numbers that count up.
        next_queue_pair: the number of the next one.
        unmapping: the peer's memory that a lost link has still to give up.
        losing, gone: whether the link is being taken apart because its peer is lost, and whether that is done.
    """

    __slots__ = (
        "ending",
        "gone",
        "losing",
        "next_queue_pair",
        "parting",
        "partner",
        "queue_pairs",
        "session",
        "unmapping",
    )

    def __init__(self, core: Runtime, peer: str) -> None:
        super().__init__(core, peer)
        self.session: Conversation | None = None
        self.partner: PeerLink | None = None
        self.parting: asyncio.Task[None] | None = None
        self.ending: Conversation | None = None
        self.queue_pairs: dict[int, FabricEndpoint] = {}
        self.next_queue_pair = 0
        self.unmapping: list[Import] = []
        self.losing = self.gone = False

    def step_failed(self, error: BaseException) -> None:
        """Lose the link, and tell the peer why. Does nothing once the link is lost."""
        session = self.session
        if session is not None:
            session.break_off(error)

    def process(self) -> PeerProcess | None:
        """Return the peer's process, which may still write to memory that it has mapped; None if it has ended."""
        session = self.session  # read once: another thread may ask while the control thread loses the link
        return session.process() if session is not None else unknown_process()

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        """Ask the peer to give back shares that it has imported. Any thread may call this."""
        session = self.session
        if session is not None:
            self.core.control.call(session.ask_back, provider, share_ids)
