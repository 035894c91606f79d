"""Runs the control conversation of one Connection: presence, lanes, memory, goodbye. On the control thread.

Both sides send Setup first. Then the side that has dialled opens the lane for messages: over shm if both are on one
host and have it, else over verbs if NICs of both can be paired, else over tcp. Transfers open more lanes later.
"""

# ruff: noqa: D102 - Conversation in peer_link.py documents these methods

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.config.providers import VERBS
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.control import address, wire
from zerohop.core.control.channel import ChannelEnded
from zerohop.core.control.descriptors import close_all
from zerohop.core.control.received import close_received
from zerohop.core.lanes.lane_setup import LaneSetup
from zerohop.core.lanes.lanes import Lanes
from zerohop.core.lanes.path_choice import IMPORTED, PEER
from zerohop.core.lanes.routes import is_ready, is_registered, register
from zerohop.core.peers.export_server import Exports
from zerohop.core.peers.import_client import Imports
from zerohop.core.peers.peer_link import NOTHING_AFTER, After
from zerohop.core.peers.rpc import Rpc
from zerohop.core.peers.teardown import farewell_error, lose, out_of_memory_for, wait_while
from zerohop.errors import (
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
    ZerohopError,
    copy_of,
    from_native,
    from_os,
    out_of_descriptors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.control.address import Address
    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Seconds in which a peer that has dialled must agree on a lane. A side that dials waits as long as its operations do.
SETUP_S: Final = 10.0
# Seconds that the kernel has to take the last messages.
_GOODBYE_S: Final = 0.2


class Session:
    """Holds this side's state of the conversation with a peer."""

    def __init__(
        self,
        core: PeerCore,
        link: PeerLink,
        channel: Channel,
        *,
        initiator: bool,
        dialled: Address | None,
        established: Callable[[PeerLink], None],
    ) -> None:
        """Prepare the conversation.

        ``dialled`` is the address that reached the peer, which may differ from the peer's own; ``established(link)`` is
        called once there is a lane for messages, and raises ProtocolError if the peer should have made none.
        """
        self._core = core
        self._link = link
        self._channel = channel
        self.initiator = initiator
        self._when_established = established
        self.lanes = Lanes(core, link, channel, initiator=initiator, first_up=self._established)
        self._imports = Imports(core, link, channel)
        self._exports = Exports(core, link, channel)
        self._rpc = Rpc(core, link, channel)
        self._setup = LaneSetup(core, link, channel, self.lanes, dialled)
        # Done when the first lane for messages is up, or with the error that prevents it.
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        # The number of the peer's doorbell; None: it has none, as on another host.
        self._doorbell: int | None = None
        # Set once the peer's Setup is here, or the conversation has ended.
        self.introduced = asyncio.Event()
        # Set once the peer's goodbye was read. Its lanes may end before that is handled.
        self._farewell: tuple[ZerohopError, Reason] | None = None
        link.session = self
        link.control = channel.protection()

    async def run(self) -> None:
        """Run until the conversation ends."""
        try:
            self._channel.end_when_silent(self._core.settings.heartbeat)
            self._post_setup()
            while True:
                message, received = await self._channel.receive()
                try:
                    if isinstance(message, wire.Bye):
                        self._farewell = farewell_error(message.text, message.fix, self._link.peer)
                        # All bytes that the peer sent before it left arrive before its lanes end; only a lane over
                        # NICs does not show its end.
                        await wait_while(self._link, lambda lane: lane.provider != VERBS and lane.endpoint.alive)
                    self._handle(message, received)
                finally:
                    close_received(received)
        except ChannelEnded as ended:
            gone = PeerLost(f"the peer is gone: {ended}", peer=self._link.peer)
            self._fail(self.lanes.given_up or gone, Reason.STREAM_CLOSED)
        except NativeError as error:
            self._break_off(from_native(*error.args, peer=self._link.peer), Reason.LANE_CLOSED)
        except (ProtocolError, ValueError, TypeError) as error:
            # Native checks raise ValueError or TypeError for values that no correct peer sends; or this Context was
            # closed in the middle of a message, and its engine is gone, which is no fault of the peer.
            self._disconnect(error)
        except ZerohopError as error:
            self._break_off(error, Reason.LANE_CLOSED)
        except OSError as error:
            reason = Reason.OUT_OF_DESCRIPTORS if out_of_descriptors(error) else Reason.STREAM_CLOSED
            self._break_off(from_os(error, peer=self._link.peer), reason)
        except MemoryError as error:
            self.break_off(error)
        finally:
            # Lose the link in any case: without a conversation its Connection would wait for ever.
            self._fail(PeerLost("the conversation with the peer broke off", peer=self._link.peer), Reason.NONE)

    def _post_setup(self) -> None:
        engine = self._core.engine
        fds: list[int] = []
        if self._channel.unix:
            doorbell, self._doorbell = engine.make_doorbell()
            fds = [engine.presence_fd, doorbell]
        try:
            self._channel.post(
                wire.Setup(
                    providers=list(self._core.providers),
                    url=self._core.url,
                    name=self._core.name[:256],
                    nics=self._core.nic_ports.nics() if VERBS in self._core.providers else [],
                    tcp_flows=self._core.settings.tcp_flows,
                    nfds=len(fds),
                ),
                fds,
            )
        finally:
            close_all(fds[1:])

    async def call(self, service: str, body: bytes, after: After = NOTHING_AFTER) -> bytes:
        return await self._rpc.call(service, body, after)

    def send(self, service: str, body: bytes) -> None:
        self._rpc.send(service, body)

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        self._exports.ask_back(provider, share_ids)

    async def give_back(self) -> None:
        await asyncio.gather(self._imports.give_all_back(), self._exports.ask_all_back())

    async def say_goodbye(self, text: str) -> None:
        self._channel.post(wire.Bye(text=text))
        try:
            await wait_with_timeout(self._channel.flush(), _GOODBYE_S)
        except TimeoutError:
            pass

    def unread(self) -> bool:
        return self._channel.unread()

    async def caught_up(self) -> None:
        await self._channel.until_read()

    def said(self) -> ZerohopError | None:
        return self.lanes.given_up if self._farewell is None else self._farewell[0]

    def process(self) -> PeerProcess | None:
        return self._channel.process()

    def break_off(self, error: BaseException) -> None:
        if isinstance(error, MemoryError):
            lost, reason = out_of_memory_for(self._link.peer), Reason.OUT_OF_MEMORY
        elif isinstance(error, PeerLost):
            lost, reason = error, Reason.LANE_CLOSED
        else:
            text = f"a step of the conversation with the peer failed: {type(error).__name__}; the log says how"
            lost, reason = PeerLost(text, peer=self._link.peer), Reason.LANE_CLOSED
        self._break_off(lost, reason)

    def end(self, error: ZerohopError) -> None:
        """End everything that waits for the peer, because the Connection is lost."""
        if not self.ready.done():
            self.ready.set_exception(copy_of(error))
        self.introduced.set()
        self.lanes.end(error)
        self._imports.end()
        self._exports.end()
        self._rpc.end()
        self._channel.close()
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is not None and not self._core.gone:
            self._core.engine.close_doorbell(doorbell)

    async def prepare(self, registration: Registration, share: Share) -> None:
        """Take one step towards a path between two memories: open its lane, register ours, or import theirs.

        Raises:
            AccessDenied: the owner does not allow it.
            Unsupported: there is no path.
            PeerLost: the peer is gone, or the only possible lane broke.
            DeadlineExceeded: the peer does not answer before the operation's deadline; the step stays under way.
        """
        routes, link = self._core.routes, self._link
        explanation = routes.explain(link, registration, share)
        lane = link.lane_of(explanation.provider)
        if lane is None:
            try:
                await self.lanes.open(explanation.provider)
            except DeadlineExceeded:
                raise
            except ZerohopError as error:
                if link.lost is not None:
                    raise
                # The error is reported only if no other path can be chosen now.
                if routes.explain(link, registration, share).provider == explanation.provider:
                    raise copy_of(error) from None
        elif explanation.form in IMPORTED:
            imported = link.imports.get((explanation.provider, share.share_id))
            if not is_registered(registration, lane):
                await self._register(registration, lane)
            elif explanation.form == PEER and imported is not None and not is_ready(imported, registration):
                await self._imports.make_ready(imported, share, registration)
            elif imported is None or imported.rails != lane.rails:  # else another thread has just taken the share
                await self._imports.ask(share, explanation.provider, lane.rails)

    def begin_import(self, share: Share, registration: Registration) -> asyncio.Future[None] | None:
        """Ask for the peer's memory if that is all that a path lacks; return the future of its end, else None.

        Raises:
            Unsupported: there is no path.
            Closed: this side is leaving.
        """
        link = self._link
        explanation = self._core.routes.explain(link, registration, share)
        provider = explanation.provider
        lane = link.lane_of(provider)
        if (
            lane is None
            or explanation.form not in IMPORTED
            or (provider, share.share_id) in link.imports
            or not is_registered(registration, lane)
            or self._imports.leaving(share, provider) is not None
        ):
            return None
        return self._imports.begin(share, provider, lane.rails)

    async def _register(self, registration: Registration, lane: Lane) -> None:
        """Register memory with each NIC of the lane, or record why that is impossible."""
        engine = self._core.engine
        for domain in lane.domains:
            # Pinning the pages of a large range takes long, so it runs on another thread.
            if not await self._core.control.run_in_thread(register, engine, registration, domain):
                return

    def _handle(self, message: wire.Message, fds: list[int]) -> None:
        if isinstance(message, wire.Setup):
            if message.nfds and not fds:
                raise OSError(errno.EMFILE, "no number left for a descriptor that the peer sent")
            self._set_up(message, fds)
        elif self._farewell is not None:
            self._fail(*self._farewell)
        elif self._link.native_id < 0:
            raise ProtocolError(f"malformed: {type(message).__name__} before Setup")
        else:
            self._handle_later(message, fds)

    def _handle_later(self, message: wire.Message, fds: list[int]) -> None:
        """Handle a message that may come once both sides have introduced themselves."""
        if isinstance(message, wire.Lane):
            self._setup.on_lane(message, fds)
        elif isinstance(message, wire.LaneInvite):
            self._setup.on_lane_invite(message)
        elif isinstance(message, wire.LaneReady):
            self._setup.on_lane_ready(message)
        elif isinstance(message, wire.LaneFailed):
            self._setup.on_lane_failed(message)
        elif isinstance(message, wire.LaneDown):
            self.lanes.on_lane_down(message)
        elif isinstance(message, wire.LaneQuiet):
            self.lanes.ports.on_lane_quiet(message)
        elif isinstance(message, wire.LaneWanted):
            self.lanes.on_lane_wanted(message)
        elif isinstance(message, wire.LaneMissing):
            self.lanes.on_lane_missing(message)
        elif isinstance(message, wire.ImportRequest):
            self._exports.on_import_request(message)
        elif isinstance(message, wire.Allocation):
            self._imports.on_allocation(message, fds)
        elif isinstance(message, wire.GrantTable):
            self._imports.on_grants(message, fds)
        elif isinstance(message, wire.AllocationPart):
            self._imports.allocations.on_part(message, fds)
        elif isinstance(message, wire.ImportReply):
            self._imports.on_import_reply(message)
        elif isinstance(message, wire.Release):
            self._imports.releases.on_release(message)
        elif isinstance(message, wire.Released):
            self._exports.on_released(message)
        elif isinstance(message, wire.Call):
            self._rpc.on_call(message)
        elif isinstance(message, wire.Answer):
            self._rpc.on_answer(message)
        else:
            raise ProtocolError(f"malformed: an unexpected {type(message).__name__}")

    def _set_up(self, setup: wire.Setup, fds: list[int]) -> None:
        link, engine = self._link, self._core.engine
        if link.native_id >= 0:
            raise ProtocolError("malformed: Setup twice")
        if len(fds) not in (0, wire.SETUP_FDS):
            raise ProtocolError(f"malformed: Setup with {len(fds)} descriptors in place of {wire.SETUP_FDS} or none")
        self._channel.most_fds = wire.MAX_FDS
        link.name = setup.name
        link.url = setup.url
        link.tcp_flows = min(self._core.settings.tcp_flows, setup.tcp_flows)
        try:
            address.parse(setup.url)
        except ValueError as error:
            raise ProtocolError(f"malformed: {error}") from None
        link.native_id = engine.add_peer(*(fds or (-1, -1)))
        self._core.introduce(link)
        self.introduced.set()
        self.lanes.agree(setup)
        if self.initiator:
            self._link.start(self._begin_messages)

    async def _begin_messages(self) -> None:
        try:
            await self.lanes.begin_messages()
        except ZerohopError as error:
            self._fail(error, Reason.LANE_CLOSED)

    def _established(self) -> None:
        self._link.ready = True
        try:
            self._when_established(self._link)
        except ProtocolError as error:
            self._disconnect(error)
        else:
            self.ready.set_result(None)

    def _disconnect(self, error: Exception) -> None:
        """End the conversation because of a message that no correct peer sends, unless this side has been closed."""
        if not self._core.closed:
            self._core.control.warn_once(self._link.peer, "protocol", "disconnected %s: %s", self._link.label, error)
        said = str(error)
        why = said if said.startswith("malformed") else f"malformed: {said}"
        self._break_off(ProtocolError(why, peer=self._link.peer), Reason.MALFORMED)

    def _break_off(self, error: ZerohopError, reason: Reason) -> None:
        """End the conversation because this side cannot go on, and tell the peer why."""
        try:
            self._channel.post(wire.Bye(text=error.reason[:2000], fix=error.fix[:2000]))
        finally:  # there may be no memory for a goodbye
            self._fail(error, reason)

    def _fail(self, error: ZerohopError, reason: Reason) -> None:
        """Lose the link. If the peer has said why it leaves, that counts."""
        if self._farewell is not None:
            error, reason = self._farewell
        lose(self._core, self._link, error, Status.PEER_LOST, reason)
