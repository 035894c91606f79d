"""Dials peers, lets peers in, and keeps one Connection per peer. On the control thread.

A handle may name any address for a Context, so each address is dialled on its own, and the first dial that succeeds
serves those to the same Context. When two Contexts dial each other at the same time, the dial of the one with the
smaller id wins: the other gives its own up once it has let that one in. A Context may also dial itself; then both ends
are its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import Reason, Status
from zerohop.core.base.deadlines import wait_while_running, wait_with_timeout
from zerohop.core.base.log import logger
from zerohop.core.base.peer_text import printable
from zerohop.core.control import address, handshake
from zerohop.core.control.dial import open_channel, open_tcp, unless_ended
from zerohop.core.control.handshake import CONTROL, DUPLICATE, LANE, Refused
from zerohop.core.control.name_lookup import NameLookup
from zerohop.core.control.waiting_room import WaitingRoom
from zerohop.core.peers import teardown
from zerohop.core.peers.admission import Admission
from zerohop.core.peers.attempt import Dial
from zerohop.core.peers.peer_death import EngineEvents
from zerohop.core.peers.peer_link import PeerLink
from zerohop.core.peers.session import SETUP_S, Session
from zerohop.core.runtime.served import seconds_left, while_waiting
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ProtocolError, ZerohopError, copy_of, silent_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from zerohop.core.control.address import Address
    from zerohop.core.control.channel import Channel
    from zerohop.core.control.handshake import Purpose
    from zerohop.core.control.wire import Hello
    from zerohop.core.peers.peer_core import PeerCore

# Seconds to wait for the peer's own socket if the peer refuses because it is dialling, too.
_CROSSING_S: Final = 0.25
_MAX_DIALS: Final = 8


class Peers:
    """Dials peers and lets peers in, for one Context."""

    def __init__(self, core: PeerCore) -> None:
        self._core = core
        # Dials under way, by address.
        self._dials: dict[Address, Dial] = {}
        self._admission = Admission(core, self._dials.keys())
        self.admit = self._admission.admit
        # Set when the next Connection is up.
        self._change: asyncio.Event | None = None
        # The first end of a Context that dials itself, until the second is there.
        self._own_end: PeerLink | None = None
        self._events = EngineEvents(core)

    def start(self) -> None:
        """Look out for peers that the engine finds dead."""
        self._change = asyncio.Event()
        # Peers that were let in, until their first lane is up.
        self._without_lane = WaitingRoom(self._core.control, "open no lane")
        self._names = NameLookup(self._core.control)
        # Peers say these names, so they have lookups of their own, and hold up no dial.
        self._lane_names = NameLookup(self._core.control)
        self._events.start()
        self._core.control.when_step_lost = self._begin_anew

    def _begin_anew(self) -> None:
        """Lose all peers, and give all dials up: a task of one of them may wait for a step that is lost."""
        error = PeerLost("out of memory: this process has lost a step of its conversations", fix="post it again")
        teardown.lose_everyone(self._core, error, Status.PEER_LOST, Reason.OUT_OF_MEMORY)
        for where, dial in self._dials.copy().items():
            del self._dials[where]  # its task may never hear of the cancellation
            dial.task.cancel()

    async def connect(self, where: Address) -> PeerLink:
        """Return the Connection to the Context at an address, and make it if there is none.

        Raises:
            PeerLost: nobody answers there, or another Context does.
            AccessDenied, ProtocolError, Unsupported: the sides could not agree.
            DeadlineExceeded: the peer is silent, and the operation that this call serves has no time left.
        """
        while True:
            existing = self._existing(where)
            if existing in self._events.ending:
                await asyncio.wait([self._events.ending[existing]])
                continue
            if existing is not None:
                return existing
            dial, left = self._dial_to(where), seconds_left(handshake.TIMEOUT_S)
            dial.allow(left)
            # The dial goes on after the wait, because other operations may be waiting for it.
            while_waiting(dial.silent)
            await asyncio.wait([dial.task], timeout=left)
            if not dial.task.done():
                raise dial.silent()  # which the operation says, too, if its deadline passes just now
            try:
                link = dial.result()
            except DeadlineExceeded as error:
                # Silence ends a dial, but not an operation that has time left.
                if seconds_left(0.0) == 0.0:
                    raise copy_of(error) from None
            except ZerohopError as error:
                raise copy_of(error) from None
            else:
                while_waiting(None)
                return link

    def _existing(self, where: Address) -> PeerLink | None:
        existing = self._core.connected.get(where.context)
        if existing is not None and not existing.alive:
            # The engine knows that the peer is lost, but its event was not handled yet.
            self._events.handle()
            if existing.lost is not None:  # a failure, out of memory, has left it in the tables
                teardown.lose(self._core, existing, existing.lost, Status.PEER_LOST, Reason.LANE_CLOSED)
            existing = self._core.connected.get(where.context)
        return existing

    def _dial_to(self, where: Address) -> Dial:
        dial = self._dials.get(where)
        if dial is None:
            dial = self._dials[where] = Dial(self._dial, where)
            dial.task.add_done_callback(lambda done: self._dialled(where, done))
        return dial

    async def open_lane(self, where: Address, peer: str, token: bytes) -> socket.socket:
        """Connect a socket for the data plane to the listener that invited it."""
        channel = await open_tcp(self._core.control, self._lane_names, where)
        try:
            await self._greet(channel, LANE, token, peer)
            return channel.detach()
        except BaseException:
            channel.close()
            raise

    async def enter(self, channel: Channel, hello: Hello, who: str) -> None:
        """Begin the conversation with an admitted peer, and wait for its Setup. Cancelling this loses the peer."""
        self._admission.entered(hello.context)
        link = PeerLink(self._core, hello.context)
        self._core.young.add(link)
        link.name = hello.name
        session = Session(self._core, link, channel, initiator=False, dialled=None, established=self._established)
        self._without_lane.thin_out(who)
        try:
            guest = self._without_lane.seat(who, lambda _: self._core.control.start(self._receive, link, session))
            await session.introduced.wait()
            guest.silent = False
        except asyncio.CancelledError:
            error = PeerLost("the peer did not introduce itself in time", peer=link.peer)
            teardown.lose(self._core, link, error, Status.PEER_LOST, Reason.LANE_CLOSED)
            raise
        except MemoryError as failure:
            link.step_failed(failure)
            raise

    def _established(self, link: PeerLink) -> None:
        """Note that the first lane for messages of a Connection is up.

        Raises:
            ProtocolError: there is a Connection to its peer already, so that the peer has not given up its own dial.
        """
        existing = self._core.connected.get(link.peer)
        if link.peer != self._core.id and existing is not None and existing.alive:
            raise ProtocolError("malformed: a second connection to one Context")
        self._core.young.discard(link)
        logger.info("%s: connected to %s", printable(self._core.name), link.label)
        if link.peer == self._core.id:
            self._pair(link)
        else:
            self._connected(link)
            if link.session is not None and not link.session.initiator:
                self._core.arrivals.add(link)
        if self._change is not None:
            self._change.set()
            self._change = asyncio.Event()

    def _connected(self, link: PeerLink) -> None:
        """Let operations use a link, also those that wait for a dial to its peer, at whatever address."""
        self._core.connected[link.peer] = link
        for where, dial in self._dials.items():
            if where.context == link.peer:
                dial.serve(link)

    def _pair(self, link: PeerLink) -> None:
        """Pair the two ends of a Context that has dialled itself; it counts as connected once both exist."""
        other, self._own_end = self._own_end, None
        if other is None or other.lost is not None:
            self._own_end = link
            return
        link.partner, other.partner = other, link
        dialling = link if link.session is not None and link.session.initiator else other
        self._connected(dialling)

    def _gives_way(self, peer: str) -> bool:
        """Tell whether a dial that has got through is given up, because another one makes the Connection."""
        if peer != self._core.id:
            return self._core.id > peer and self._admission.arriving(peer, dialled=False)
        # Two pairs of ends at once could not be told apart.
        half = self._own_end is not None and self._own_end.lost is None
        sessions = [link.session for link in self._core.young if link.peer == peer]
        return half or any(session is not None and session.initiator for session in sessions)

    async def close(self, farewell: str) -> None:
        """Say goodbye to all peers."""
        self._admission.closing = True
        everyone = {*self._core.connected.values(), *self._core.young}
        error, status, reason = self._core.closed_error(), Status.CLOSED, Reason.CONTEXT_CLOSED
        goodbyes: list[Coroutine[Any, Any, None]] = [
            teardown.part(self._core, link, farewell, error, status, reason) for link in everyone
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)

    def lose_all(self) -> None:
        """Lose all Connections, after the engine was closed."""
        self._events.stop()
        teardown.lose_everyone(self._core, self._core.closed_error(), Status.CLOSED, Reason.LANE_CLOSED)
        self._core.introduced.clear()
        self._core.connections.clear()

    def _dialled(self, where: Address, task: asyncio.Task[PeerLink]) -> None:
        dial = self._dials.get(where)
        if dial is not None and dial.task is task:
            del self._dials[where]
        if not task.cancelled():
            task.exception()  # asyncio would warn of an exception that nobody fetched

    async def _dial(self, where: Address, dial: Dial) -> PeerLink:
        peer = where.context
        me = self._core.identity
        await me.ready(over_tcp=not where.socket_path or where.host_id != me.host)
        if not peer or not where.host_id:
            where = await self._locate(where, dial)
        if not peer:
            # The id of the peer is known now: there may be a Connection, or another dial to it.
            return await self.connect(where)
        refusals = 0
        while refusals < _MAX_DIALS:
            if peer == self._core.id or not self._admission.arriving(peer, dialled=False):
                link = await self._dial_once(where, dial)
                if link is not None and link.peer != self._core.id:
                    return link
                # The peer refuses this dial for as long as it sets up another.
                refusals += not self._admission.arriving(peer)
            arrived = await self._crossing(peer)
            if arrived is not None:
                return arrived
        raise PeerLost("the peer refuses a second connection, and the first is not there", peer=peer)

    async def _dial_once(self, where: Address, dial: Dial) -> PeerLink | None:
        """Dial a peer once; return None if another dial is under way, or the peer believes that it is connected."""
        channel = await open_channel(self._core.control, self._names, where, dial.waits)
        try:
            try:
                await self._greet(channel, CONTROL, b"", where.context, dial.met)
            except (PeerLost, ProtocolError):
                if not (channel.unix and where.listens):
                    raise
                # In another container the same path may lead to another process.
                channel.close()
                channel = await open_tcp(self._core.control, self._names, where, waits=dial.waits)
                await self._greet(channel, CONTROL, b"", where.context, dial.met)
            existing = self._core.connected.get(where.context)
            if existing is not None:
                channel.close()
                return existing
            if self._gives_way(where.context):
                channel.close()
                return None
            link = PeerLink(self._core, where.context)
            session = Session(self._core, link, channel, initiator=True, dialled=where, established=self._established)
        except Refused as refusal:
            channel.close()
            if refusal.code == DUPLICATE:
                return None
            raise refusal.error(where.context) from None
        except BaseException:
            channel.close()
            raise
        self._core.young.add(link)
        await self._set_up(link, session)
        return link

    async def _locate(self, where: Address, dial: Dial) -> Address:
        """Return an address with the id of the Context that listens there, and its Unix socket if it is on this host.

        Asked first, so that dials to one Context under several names become one.
        """
        channel = await open_channel(self._core.control, self._names, where, dial.waits)
        me = self._core.identity
        # A path may lead to a file system that hangs, so an unproved peer of another host may name none.
        trusted = me.secret is not None or channel.unix or channel.connected_here()
        try:
            challenge, path = await unless_ended(handshake.locate(channel, me, where.context), where.context)
        except Refused as refusal:
            raise refusal.error(where.context) from None
        finally:
            channel.close()
        if channel.unix:
            path = where.socket_path
        elif not trusted or challenge.host != me.host or not address.is_ours(path):
            path = ""
        return where._replace(context=challenge.context, host_id=challenge.host, socket_path=path)

    async def _receive(self, link: PeerLink, session: Session) -> None:
        try:
            await wait_while_running(self._set_up(link, session), SETUP_S)
        except (Closed, PeerLost, TimeoutError):
            # One of the two has left again. The peer will come back if it needs a Connection.
            return
        except ZerohopError as error:
            # Of the same topic as `Session._disconnect`, which may have logged this peer and the error already.
            self._core.control.warn_once(
                link.peer, "protocol", "%s did not get through its setup: %s", link.label, error
            )

    async def _set_up(self, link: PeerLink, session: Session) -> None:
        """Wait until the lane for messages is up. Cancelling this loses the peer if no lane is up by then."""
        try:
            link.start(session.run)
            await asyncio.shield(session.ready)
        except asyncio.CancelledError:
            if not session.ready.done():
                error = silent_error(link.peer, "the peer did not agree on a lane")
                teardown.lose(self._core, link, error, Status.PEER_LOST, Reason.LANE_CLOSED)
            raise
        except MemoryError as failure:
            link.step_failed(failure)
            raise

    async def _crossing(self, peer: str) -> PeerLink | None:
        """Return the Connection that the peer is making, if it comes soon."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CROSSING_S
        while peer not in self._core.connected and loop.time() < deadline and self._change is not None:
            try:
                await wait_with_timeout(self._change.wait(), deadline - loop.time())
            except TimeoutError:
                break
        return self._core.connected.get(peer)

    async def _greet(
        self, channel: Channel, purpose: Purpose, token: bytes, peer: str, met: Callable[[], object] = lambda: None
    ) -> None:
        await unless_ended(handshake.greet(channel, self._core.identity, purpose, token, peer, met), peer)
