"""Dials peers, lets peers in, and keeps one Connection per peer. On the control thread.

When two Contexts dial each other at the same time, the one with the smaller id wins: it refuses the other's socket,
and the other uses the one that comes in. A Context may also dial itself; then both ends are its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop._native import Reason, Status
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.core.base.log import logger
from zerohop.core.control import address, handshake
from zerohop.core.control.channel import Channel, ChannelEnded
from zerohop.core.control.dial import open_channel, open_tcp
from zerohop.core.control.handshake import CLOSED, CONTROL, DUPLICATE, LANE, Refused
from zerohop.core.lanes.link import lost_error
from zerohop.core.peers.session import SETUP_S, Session
from zerohop.core.runtime.deferred import seconds_left
from zerohop.core.transfers.connection import Connection
from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError, ZerohopError, copy_of, silent_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from zerohop.core.context import Context
    from zerohop.core.control.address import Address
    from zerohop.core.control.handshake import Purpose
    from zerohop.core.control.wire import Hello
    from zerohop.core.lanes.imported import Import

_T = TypeVar("_T")
# A dial ends with the deadlines of those who wait for it, and then: what it talks to may have been gone for long.
LONGEST_DIAL_S: Final = 120.0
# After a refusal because the peer is dialling too: how long its own socket may take, and how often to dial again.
_CROSSING_S: Final = 0.25
_ATTEMPTS: Final = 8
# Connections that are gone, kept for notifications that arrived before they were.
_REMEMBERED: Final = 1024
_UNMAP_PAUSE_S: Final = 0.002
# An interface that comes up gets its addresses one after the other.
_SETTLING_S: Final = 0.1
# Tokens of the engine's events are ids of peers that were found dead; with one of these bits, of peers of which a lane
# is down, and numbers of domains whose port or device changed its state.
_LANE_DOWN: Final = 1 << 62
_PORT_CHANGED: Final = 1 << 61


class _Dial:
    """An attempt to reach a peer, shared by all that wait for it; the most patient of them sets its time limit."""

    def __init__(self, peer: str, work: Callable[..., Coroutine[Any, Any, Connection]], where: Address) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        # Also for those who are in a hurry: their next attempt goes on with what this one has begun.
        self._until = self._started + handshake.TIMEOUT_S
        self._expired = False
        self.task = self._loop.create_task(self._run(work, where))
        self._timer = self._loop.call_at(self._until, self._expire)
        self.task.add_done_callback(lambda _: self._timer.cancel())

    def allow(self, seconds: float | None) -> None:
        """Allow the attempt so many seconds from now on; None: as long as any attempt may take."""
        until = self._started + LONGEST_DIAL_S
        if seconds is not None:
            until = min(until, self._loop.time() + seconds)
        self._until = max(self._until, until)

    def _expire(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._expire)
        else:
            self._expired = True
            self.task.cancel()

    async def _run(self, work: Callable[..., Coroutine[Any, Any, Connection]], where: Address) -> Connection:
        try:
            return await work(where)
        except asyncio.CancelledError:
            if not self._expired:
                raise
            raise silent_error(self._peer, "the peer does not finish connecting") from None


class Peers:
    """Holds every Connection of a Context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # By id of the peer Context; read by any thread.
        self.connected: dict[str, Connection] = {}
        # By native id, the lost ones too.
        self.introduced: dict[int, Connection] = {}
        self._dials: dict[str, _Dial] = {}
        self._dialling: set[str] = set()
        # Those that have not come to a lane yet, and when peers were admitted that are about to become one.
        self._young: set[Connection] = set()
        self._admitted: dict[str, float] = {}
        self._arrivals: asyncio.Event | None = None
        # The first end of a Context that dials itself, until the second is there.
        self._own_end: Connection | None = None
        self._closing = False
        # Lost, and what they have sent before is still being handled.
        self._ending: dict[Connection | None, asyncio.Task[None]] = {}
        # Whether the addresses of ports are about to be looked at.
        self._looking_again = False
        # What tells of dead peers; known also when the engine is gone.
        self._events_fd = -1

    def start(self) -> None:
        """Look out for peers that the engine finds dead."""
        self._arrivals = asyncio.Event()
        self._events_fd = self._context._engine.events.fd
        asyncio.get_running_loop().add_reader(self._events_fd, self._look)

    async def connect(self, where: Address) -> Connection:
        """Return the Connection to the Context at an address, and make it if there is none.

        Raises:
            PeerLost: nobody answers there, or another Context does.
            AccessDenied, ProtocolError, Unsupported: they could not agree.
            DeadlineExceeded: the peer is silent, and the operation that this is for ends.
        """
        while True:
            existing = self._existing(where)
            if existing in self._ending:
                await asyncio.wait([self._ending[existing]])
                continue
            if existing is not None:
                return existing
            dial = self._dial_to(where)
            left = seconds_left(handshake.TIMEOUT_S)
            dial.allow(left)
            # Others may be waiting for the same one.
            await asyncio.wait([dial.task], timeout=left)
            if not dial.task.done():
                raise silent_error(where.context, "the peer does not finish connecting")
            try:
                return dial.task.result()
            except DeadlineExceeded as error:
                # Silence is the end of a dial, but of no operation that has time left.
                if seconds_left(0.0) == 0.0:
                    raise copy_of(error) from None
            except ZerohopError as error:
                raise copy_of(error) from None

    def _existing(self, where: Address) -> Connection | None:
        existing = self.connected.get(where.context)
        if existing is not None and not existing.alive:
            # The engine knows, and its message is on the way.
            self._look()
            existing = self.connected.get(where.context)
        return existing

    def _dial_to(self, where: Address) -> _Dial:
        key = where.context or where.url()
        dial = self._dials.get(key)
        if dial is None:
            dial = self._dials[key] = _Dial(where.context, self._dial, where)
            dial.task.add_done_callback(lambda done: self._dialled(key, done))
        return dial

    async def open_lane(self, where: Address, peer: str, token: bytes) -> socket.socket:
        """Connect a socket for the data plane to the listener that invited it."""
        channel = await open_tcp(self._context, where)
        try:
            await self._greet(channel, LANE, token, peer)
            return channel.detach()
        except BaseException:
            channel.close()
            raise

    def admit(self, hello: Hello) -> None:
        """Check a peer that has dialled; raise Refused if it may not come in."""
        if self._closing:
            raise Refused(CLOSED, "this Context is closing")
        own, other = self._context.id, hello.context
        if other == own:
            return
        if other in self.connected:
            raise Refused(DUPLICATE, "already connected")
        if self._arriving(other) or (other in self._dialling and own < other):
            raise Refused(DUPLICATE, "connecting to that peer already")
        self._admitted[other] = time.monotonic()

    def enter(self, channel: Channel, hello: Hello) -> None:
        """Begin the conversation with a peer that has dialled and was admitted."""
        self._admitted.pop(hello.context, None)
        connection = Connection(self._context, hello.context)
        self._young.add(connection)
        connection.name = hello.name
        session = Session(self._context, connection, channel, initiator=False, dialled=None)
        self._context._control.start(self._receive, connection, session)

    def introduce(self, connection: Connection) -> None:
        """Register a Connection that has a native id from now on."""
        self.introduced[connection._native_id] = connection
        if len(self.introduced) > _REMEMBERED:
            for native_id, old in list(self.introduced.items()):
                if old._lost is not None:
                    del self.introduced[native_id]
                    break

    def established(self, connection: Connection) -> None:
        """Note that a Connection's lane is up."""
        self._young.discard(connection)
        logger.info("%s: connected to %s", self._context.name, connection.name or connection.peer[:12])
        if connection.peer == self._context.id:
            self._pair(connection)
        else:
            self.connected[connection.peer] = connection
        if self._arrivals is not None:
            self._arrivals.set()
            self._arrivals = asyncio.Event()

    def _pair(self, connection: Connection) -> None:
        """Pair the two ends of a Context that has dialled itself; they count once both exist."""
        other, self._own_end = self._own_end, None
        if other is None or other._lost is not None:
            self._own_end = connection
            return
        connection._partner, other._partner = other, connection
        dialled = connection if connection._session is not None and connection._session.initiator else other
        self.connected[connection.peer] = dialled

    def _arriving(self, peer: str) -> bool:
        """Tell whether a Connection to a peer is being set up."""
        admitted = self._admitted.get(peer)
        if admitted is not None and time.monotonic() - admitted > handshake.TIMEOUT_S:
            del self._admitted[peer]
            admitted = None
        return admitted is not None or any(connection.peer == peer for connection in self._young)

    def forget(self, connection: Connection) -> None:
        """Forget a Connection that is lost."""
        self._young.discard(connection)
        # As text: whoever keeps log records would keep an error's traceback, and with it half the Context.
        logger.info(
            "%s: %s is gone: %s", self._context.name, connection.name or connection.peer[:12], str(connection._lost)
        )
        if self.connected.get(connection.peer) is connection:
            del self.connected[connection.peer]
        partner, connection._partner = connection._partner, None
        if partner is not None and partner._lost is None:
            error = connection._lost
            assert error is not None
            partner._lose(copy_of(error), Status.PEER_LOST, Reason.LANE_CLOSED)

    def of_native(self, native_id: int) -> Connection:
        """Return the Connection of a native id; an unnamed, lost one if it is long gone."""
        connection = self.introduced.get(native_id)
        if connection is None:
            connection = Connection(self._context, "")
            connection._lost = PeerLost("the peer is long gone")
        return connection

    def unmap(self, imported: Import) -> None:
        """Let go of a peer's memory, now or when the last operation with it has ended."""
        if not imported.close():
            self._context._control.start(self.drained, imported)

    async def drained(self, imported: Import) -> None:
        """Wait until nothing here uses a peer's memory."""
        # The copies that are left end within microseconds, and nothing tells when.
        while not imported.close():  # noqa: ASYNC110
            await asyncio.sleep(_UNMAP_PAUSE_S)

    async def close(self, farewell: str) -> None:
        """Say goodbye to all peers."""
        self._closing = True
        everyone = {*self.connected.values(), *self._young}
        error, status, reason = self._context._closed_error(), Status.CLOSED, Reason.CONTEXT_CLOSED
        goodbyes: list[Coroutine[Any, Any, None]] = [
            connection._part(farewell, error, status, reason) for connection in everyone
        ]
        await asyncio.gather(*goodbyes, return_exceptions=True)

    def lose_all(self) -> None:
        """Lose all Connections, after the engine was closed."""
        asyncio.get_running_loop().remove_reader(self._events_fd)
        error = self._context._closed_error()
        for connection in {*self.connected.values(), *self._young, *self.introduced.values()}:
            connection._lose(error, Status.CLOSED, Reason.LANE_CLOSED)
        self.introduced.clear()

    def _look(self) -> None:
        """Handle what the engine has found: dead peers, lanes that are down, changed NIC ports."""
        engine = self._context._engine
        changed: dict[int, None] = {}
        for token in engine.events.drain():
            if token & _PORT_CHANGED:
                changed[token & ~_PORT_CHANGED] = None
                continue
            connection = self.introduced.get(token & ~_LANE_DOWN)
            if connection is None or connection._lost is not None:
                continue
            if token & _LANE_DOWN:
                if connection._session is not None:
                    connection._session.lanes.look()
            else:
                self._end_heard(connection, *engine.peer_status(token))
        for number in changed:
            self._port_changed(number)

    def _end_heard(self, connection: Connection, status: Status, reason: Reason) -> None:
        """Lose a peer whose lanes have ended, after its earlier messages, such as Released, were handled."""
        session = connection._session

        async def work() -> None:
            try:
                if session is not None:
                    await session.caught_up()
            finally:
                self._ending.pop(connection, None)
                connection._lose(lost_error(connection, status, reason), status, reason)

        if session is None or not session.unread():
            connection._lose(lost_error(connection, status, reason), status, reason)
        elif connection not in self._ending:
            self._ending[connection] = self._context._control.start(work)

    def _port_changed(self, number: int) -> None:
        """Where it is up again, what went another way may go over it. Where it is down, idle lanes go another way.

        A device that is lost may be there again: to be opened anew. And a port whose state is as it was has other
        addresses.
        """
        fabric = self._context._nic_ports
        domain = fabric.domain(number)
        if domain is None:
            return
        if fabric.noticed(domain):
            for connection in list(self.connected.values()):
                lanes = connection._session.lanes if connection._session is not None else None
                if domain.alive or domain.lost:
                    connection._reconsider()
                    if lanes is not None:
                        lanes.ports.back()
                        lanes.retry()
                elif lanes is not None:
                    lanes.ports.down(domain)
        if domain.alive and not self._looking_again:
            self._looking_again = True
            self._context._control.start(self._look_again)

    async def _look_again(self) -> None:
        """Choose ports again, a little later: it reads hundreds of files, and several ports tend to change at once."""
        await asyncio.sleep(_SETTLING_S)
        self._looking_again = False
        fabric = self._context._nic_ports
        ports = await self._context._control.run_in_thread(fabric.choose_again)
        fabric.use(ports)

    def _dialled(self, key: str, task: asyncio.Task[Connection]) -> None:
        self._dials.pop(key, None)
        if not task.cancelled():
            # Whoever waited may be gone.
            task.exception()

    async def _dial(self, where: Address) -> Connection:
        peer = where.context
        if not peer or not where.host_id:
            where = await self._locate(where)
        if not peer:
            # Now that it has a name: there may be a Connection, or a dial that others began.
            return await self.connect(where)
        attempts = 0
        while attempts < _ATTEMPTS:
            if peer == self._context.id or not self._arriving(peer):
                attempts += 1
                self._dialling.add(peer)
                try:
                    connection = await self._dial_once(where)
                finally:
                    self._dialling.discard(peer)
                if connection is not None and connection.peer != self._context.id:
                    return connection
            arrived = await self._crossing(peer)
            if arrived is not None:
                return arrived
        raise PeerLost("the peer refuses a second connection, and the first is not there", peer=peer)

    async def _dial_once(self, where: Address) -> Connection | None:
        """Dial a peer once; return None if the peer is dialling this side, or believes that it is still connected."""
        channel = await open_channel(self._context, where)
        try:
            try:
                await self._greet(channel, CONTROL, b"", where.context)
            except (PeerLost, ProtocolError):
                if not (channel.unix and where.listens):
                    raise
                # In this container the path may be somebody else's.
                channel.close()
                channel = await open_tcp(self._context, where)
                await self._greet(channel, CONTROL, b"", where.context)
            existing = self.connected.get(where.context)
            if existing is not None:
                channel.close()
                return existing
            connection = Connection(self._context, where.context)
            session = Session(self._context, connection, channel, initiator=True, dialled=where)
        except Refused as refusal:
            channel.close()
            if refusal.code == DUPLICATE:
                return None
            raise refusal.error(where.context) from None
        except BaseException:
            channel.close()
            raise
        await self._set_up(connection, session)
        return connection

    async def _locate(self, where: Address) -> Address:
        """Return an address with the id of the Context that listens there, and its Unix socket if it is on this host.

        Asked before anything is agreed on: what is known by name can be met by another dial, and found by its id.
        """
        channel = await open_channel(self._context, where)
        me = self._context._identity
        # A path may lead to a file system that keeps whoever looks waiting: no stranger elsewhere makes us look.
        trusted = me.secret is not None or channel.unix or address.connected_here(channel._sock)
        try:
            challenge, path = await _unless_ended(handshake.locate(channel, me, where.context), where.context)
        except Refused as refusal:
            raise refusal.error(where.context) from None
        finally:
            channel.close()
        if channel.unix:
            path = where.socket_path
        elif not trusted or challenge.host != me.host or not address.is_ours(path):
            path = ""
        return where._replace(context=challenge.context, host_id=challenge.host, socket_path=path)

    async def _receive(self, connection: Connection, session: Session) -> None:
        try:
            await wait_with_timeout(self._set_up(connection, session), SETUP_S)
        except (PeerLost, TimeoutError):
            # It left again; if it wanted anything it will come back.
            return
        except ZerohopError as error:
            self._context._control.warn_once(
                connection.peer, "setup", "a peer did not get through its setup: %s", error
            )

    async def _set_up(self, connection: Connection, session: Session) -> None:
        """Wait until the lane is up; cancelled if nobody waits any longer."""
        self._young.add(connection)
        self._context._control.start(session.run)
        try:
            await asyncio.shield(session.ready)
        except asyncio.CancelledError:
            if not session.ready.done():
                error = silent_error(connection.peer, "the peer did not agree on a lane")
                connection._lose(error, Status.PEER_LOST, Reason.LANE_CLOSED)
            raise

    async def _crossing(self, peer: str) -> Connection | None:
        """Return the Connection that the peer is making, if it comes soon."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CROSSING_S
        while peer not in self.connected and loop.time() < deadline and self._arrivals is not None:
            try:
                await wait_with_timeout(self._arrivals.wait(), deadline - loop.time())
            except TimeoutError:
                break
        return self.connected.get(peer)

    async def _greet(self, channel: Channel, purpose: Purpose, token: bytes, peer: str) -> None:
        await _unless_ended(handshake.greet(channel, self._context._identity, purpose, token, peer), peer)


async def _unless_ended(conversation: Coroutine[Any, Any, _T], peer: str) -> _T:
    # As long as whoever wants the Connection waits: a peer that is silent may only be stopped.
    try:
        return await conversation
    except ChannelEnded as ended:
        raise PeerLost(f"the peer hung up during the handshake: {ended}", peer=peer, operation="connect") from None
