"""Sets up one lane: both ends, the messages between them, and the sockets of a tcp lane. On the control thread.

The side that opens a lane sends Lane with its end's address; the peer makes its own end, connects it, and answers with
a Lane of the same number. The opener connects its end and sends LaneReady; then the peer counts the lane as up, and
sends LaneReady too. For tcp the addresses are empty: a side that listens invites the other to open authenticated
sockets beside that of the control channel, which both hand to the data plane. A side that cannot go on sends
LaneFailed.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError, Reason
from zerohop.config.providers import TCP, VERBS
from zerohop.core.base.peer_text import quoted
from zerohop.core.control import address, wire
from zerohop.core.control.handshake import Refused
from zerohop.core.lanes import nic_ports
from zerohop.core.lanes.lane import Lane, State
from zerohop.core.runtime.deferred_post import defer_post
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.errors import PeerLost, ProtocolError, ZerohopError, from_native, from_os, too_many_threads

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine

    from zerohop._native import Domain, Endpoint
    from zerohop.core.control.address import Address
    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.lane_core import LaneCore
    from zerohop.core.lanes.lanes import Lanes
    from zerohop.core.lanes.link import Link

# Time limit of the first bytes over a verbs lane. Connecting sends nothing, so only these bytes show that a switch
# drops everything.
_PROOF_NS: Final = 3_000_000_000


class LaneSetup:
    """Makes the lanes of one Connection."""

    def __init__(self, core: LaneCore, link: Link, channel: Channel, lanes: Lanes, dialled: Address | None) -> None:
        """Prepare; ``dialled`` is the address that reached the peer, None if the peer has dialled."""
        self._core = core
        self._link = link
        self._channel = channel
        self._lanes = lanes
        self._dialled = dialled
        self._initiator = dialled is not None
        lanes.begin = self.begin

    def begin(self, provider: str, messages: bool, without: set[int]) -> Lane:
        """Announce a lane, which comes up or fails later. ``without`` are NICs of the peer that cannot be used now."""
        peer = self._link.peer
        places, rails = self._rails(without) if provider == VERBS else ((), ())
        endpoint = None
        try:
            domains = tuple(self._core.nic_ports.domains(places))
            endpoint = self._endpoint(provider, domains)
            number, self._lanes.next_mine = self._lanes.next_mine, self._lanes.next_mine + 2
            lane = Lane(number, provider, endpoint, messages=messages, mine=True, domains=domains, rails=tuple(rails))
            data, fds = endpoint.address() if provider != TCP else (b"", [])
            pairs = list(zip(places, rails, strict=True))
            message = wire.Lane(
                number=number, provider=provider, address=data, messages=messages, rails=pairs, nfds=len(fds)
            )
            self._channel.post(message, fds)
        except (NativeError, OSError) as error:
            if endpoint is not None:
                endpoint.close()
            raise _error(error, peer) from None
        self._lanes.all[number] = lane
        if provider == TCP:
            self._arrange_socket(lane)
        return lane

    def on_lane(self, message: wire.Lane, fds: list[int]) -> None:
        """Handle Lane: the peer's end of a lane that the peer opens, or of a lane that this side has opened."""
        # A number of this side (LaneTable): the peer answers.
        if message.number % 2 == (0 if self._initiator else 1):
            self._answered(message, fds)
        else:
            self._check_new(message)
            self._lanes.last_theirs = message.number
            self._answer(message, fds)

    def on_lane_invite(self, message: wire.LaneInvite) -> None:
        """Handle LaneInvite: the peer listens, and this side connects the sockets."""
        lane = self._lanes.find(message.number)
        if lane is None or lane.state is not State.OPENING:
            return
        if lane.provider != TCP or lane.inviting or lane.task is not None:
            raise ProtocolError("malformed: an invitation to a lane that was not agreed on")
        if len(message.tokens) != self._sockets():
            raise ProtocolError("malformed: an invitation of more or fewer sockets than both sides allow")
        self._beside(lane, self._bring_sockets, message.tokens)

    def on_lane_ready(self, message: wire.LaneReady) -> None:
        """Handle LaneReady: the peer's end is connected."""
        lane = self._lanes.find(message.number)
        if lane is None or lane.state is State.DOWN:
            return
        if lane.state is State.UP or (lane.mine and not lane.said_ready):
            raise ProtocolError("malformed: LaneReady out of turn")
        if lane.mine:
            self._lanes.came_up(lane)
        else:
            lane.answered = True
            self._go_on(lane)

    def on_lane_failed(self, message: wire.LaneFailed) -> None:
        """Handle LaneFailed: the peer cannot make its end."""
        lane = self._lanes.find(message.number)
        if lane is None:
            return
        if lane.state is State.UP:
            raise ProtocolError("malformed: LaneFailed of a lane that is up")
        lane.blamed = tuple(message.down)
        error = PeerLost(
            f"the peer could not open its end of the lane: {quoted(message.text)}",
            fix=f"in the peer's process: {quoted(message.fix)}" if message.fix else "",
            peer=self._link.peer,
            provider=lane.provider,
        )
        self._lanes.fail(lane, error, tell=False)

    def _rails(self, without: set[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the places (indices) of the NICs that a new lane pairs, here and at the peer, in the same order."""
        ports = self._core.nic_ports
        down: dict[int, str] = {}
        while True:
            # The ports are read again each time, because they come and go.
            pairs = nic_ports.pair(ports.nics(), self._link.their_nics, down, without)
            more = {place: why for place, _ in pairs if (why := ports.port_down(place))}
            if not more:
                break
            down |= more
        if not pairs:
            why, fix = ports.why_not() or "; ".join(down.values()), ports.fix()
            if not why:
                why, fix = "the NIC ports at the peer's end are down", "bring one of them up there"
            raise PeerLost(why, fix=fix, provider=VERBS, peer=self._link.peer)
        here, there = zip(*pairs, strict=True)
        return tuple(here), tuple(there)

    def _endpoint(self, provider: str, domains: tuple[Domain, ...]) -> Endpoint:
        engine, peer = self._core.engine, self._link.native_id
        return engine.endpoint(provider, peer, list(domains)) if domains else engine.endpoint(provider, peer)

    def _check_new(self, message: wire.Lane) -> None:
        """Check a new lane: a peer may open one for each provider in common, and one for messages if it has dialled."""
        if message.number <= self._lanes.last_theirs or message.provider not in self._link.possible:
            raise ProtocolError("malformed: a lane that was not agreed on")
        if message.messages and self._initiator:
            raise ProtocolError("malformed: the side that dialled opens the lane for messages")
        places = {place for _, place in message.rails}
        if (message.provider == VERBS) != bool(places) or len(places) != len(message.rails):
            raise ProtocolError("malformed: a lane of NICs has rails, each over one of its own, and no other lane has")
        if any(place >= len(self._link.their_nics) for place, _ in message.rails):
            raise ProtocolError("malformed: a lane over a NIC that the peer has not named")
        for lane in self._lanes.all.values():
            again = not lane.mine and lane.messages == message.messages
            if lane.provider == message.provider and (again or lane.state is State.DOWN):
                raise ProtocolError("malformed: a second lane of the same provider")

    def _answer(self, message: wire.Lane, fds: list[int]) -> None:
        provider, ports = message.provider, self._core.nic_ports
        if self._initiator and any(
            lane.provider == provider and lane.mine and lane.state is State.OPENING for lane in self._lanes.all.values()
        ):
            self._refuse(message.number, "the other side opens one at this moment")
            return
        down = {place: why for _, place in message.rails if (why := ports.port_down(place))}
        if down:
            self._refuse(message.number, "; ".join(down.values()), sorted({p for p in down if p < wire.MAX_NICS}))
            return
        endpoint = None
        try:
            _check_arrived(message, fds)
            domains = tuple(ports.domains([place for _, place in message.rails]))
            endpoint = self._endpoint(provider, domains)
            lane = Lane(
                message.number,
                provider,
                endpoint,
                messages=message.messages,
                mine=False,
                domains=domains,
                rails=tuple(place for place, _ in message.rails),
            )
            data, own = endpoint.address() if provider != TCP else (b"", [])
            if provider != TCP:
                endpoint.connect(message.address, fds)
                lane.connected = True
            self._channel.post(
                wire.Lane(number=lane.number, provider=provider, address=data, messages=lane.messages, nfds=len(own)),
                own,
            )
        except BaseException as error:
            if endpoint is not None:
                endpoint.close()
            if not isinstance(error, NativeError | OSError):
                raise
            failure = _error(error, self._link.peer)
            self._refuse(message.number, failure.reason, fix=failure.fix)
            if isinstance(error, NativeError) and error.args[1] == Reason.MALFORMED.value:
                raise
            return
        self._lanes.all[lane.number] = lane
        if provider == TCP:
            self._arrange_socket(lane)

    def _answered(self, message: wire.Lane, fds: list[int]) -> None:
        lane = self._lanes.find(message.number)
        if lane is None or lane.state is not State.OPENING:
            return
        if lane.answered or message.provider != lane.provider or message.messages != lane.messages:
            raise ProtocolError("malformed: a lane that was not agreed on")
        lane.answered = True
        if lane.provider != TCP:
            try:
                _check_arrived(message, fds)
                lane.endpoint.connect(message.address, fds)
            except (NativeError, OSError) as error:
                self._lanes.fail(lane, _error(error, self._link.peer), tell=True)
                return
            lane.connected = True
        self._go_on(lane)

    def _refuse(self, number: int, text: str, down: list[int] | None = None, fix: str = "") -> None:
        self._channel.post(wire.LaneFailed(number=number, text=text[:2000], down=down or [], fix=fix[:2000]))

    def _go_on(self, lane: Lane) -> None:
        """Go on with the setup as far as both ends are ready."""
        if not (lane.connected and lane.answered) or lane.said_ready:
            return
        if not lane.mine:
            # LaneReady goes out only now: when the opening side counts the lane as up, this end must be complete.
            self._say_ready(lane)
            self._lanes.came_up(lane)
        elif lane.provider == VERBS:
            self._beside(lane, self._prove, None)
        else:
            self._say_ready(lane)

    def _say_ready(self, lane: Lane) -> None:
        lane.said_ready = True
        self._channel.post(wire.LaneReady(number=lane.number))

    async def _prove(self, lane: Lane, _: None) -> None:
        """Send something to the peer's end and back before anything relies on the lane."""
        engine, deadline = self._core.engine, time.monotonic_ns() + _PROOF_NS
        try:
            await defer_post(self._core, lambda _: engine.post_flush(lane.endpoint, deadline), deadline, 0, NBYTES)
        except (ZerohopError, NativeError) as error:
            why = error.reason if isinstance(error, ZerohopError) else from_native(*error.args).reason
            ports = ", ".join(f"{domain.device} port {domain.port}" for domain in lane.domains)
            raise PeerLost(
                f"nothing comes through between {ports} and the peer's NIC: {why}",
                fix="check addresses, cables and switches on the way; zerohop doctor",
                provider=VERBS,
                peer=self._link.peer,
            ) from None
        self._say_ready(lane)

    def _arrange_socket(self, lane: Lane) -> None:
        """Arrange the socket: the side that was dialled listens if it can, so that the other need not be reachable."""
        own, peer = address.parse(self._core.url), address.parse(self._link.url)
        dialled_listens = peer.listens if self._initiator else own.listens
        lane.inviting = not dialled_listens if self._initiator else dialled_listens
        if lane.inviting:
            invited = [self._core.listeners.invite() for _ in range(self._sockets())]
            futures = [future for _, future in invited]
            try:
                self._channel.post(wire.LaneInvite(number=lane.number, tokens=[token for token, _ in invited]))
                self._beside(lane, self._take_sockets, invited)
                assert lane.task is not None
                lane.task.add_done_callback(lambda _: _withdraw(futures))
            except MemoryError:  # a socket that comes all the same would belong to nobody
                _withdraw(futures)
                raise

    def _sockets(self) -> int:
        """Return the sockets of a tcp lane: one of its own, and one for each flow if there are several."""
        flows = self._link.tcp_flows
        return 1 + flows if flows > 1 else 1

    async def _take_sockets(self, lane: Lane, invited: list[tuple[bytes, asyncio.Future[socket.socket]]]) -> None:
        tls = await self._core.lane_tls([token for token, _ in invited], dials=False)
        with ExitStack() as taken:
            self._use_sockets(lane, [taken.enter_context(await future) for _, future in invited], tls)

    async def _bring_sockets(self, lane: Lane, tokens: list[bytes]) -> None:
        where = self._dialled
        if where is None or not where.listens:
            where = address.parse(self._link.url)
        tls = await self._core.lane_tls(tokens, dials=True)
        with ExitStack() as brought:
            open_lane = self._core.open_lane
            sockets = [brought.enter_context(await open_lane(where, self._link.peer, token)) for token in tokens]
            self._use_sockets(lane, sockets, tls)

    def _use_sockets(self, lane: Lane, sockets: list[socket.socket], tls: bytes) -> None:
        """Hand copies of the sockets to the data plane, unless the lane was given up meanwhile."""
        if lane.state is State.OPENING:
            try:
                lane.endpoint.connect(tls, [sock.fileno() for sock in sockets])
            except (NativeError, OSError) as error:
                if not lane.endpoint.alive and self._channel.unread():
                    return  # the peer has given the lane up, and what it has sent says why
                # The peer is told before the sockets close, whose end would tell it less.
                no_thread = isinstance(error, OSError) and error.errno == errno.EAGAIN
                failure = too_many_threads() if no_thread else _error(error, self._link.peer)
                self._lanes.fail(lane, failure, tell=True)
                return
            lane.connected = True
            self._go_on(lane)

    def _beside(self, lane: Lane, work: Callable[[Lane, Any], Coroutine[Any, Any, None]], argument: Any) -> None:
        """Run a lane's work as a task; only the operations that wait for the lane limit its time."""
        lane.task = self._link.start(self._guarded, lane, work, argument)

    async def _guarded(self, lane: Lane, work: Callable[[Lane, Any], Coroutine[Any, Any, None]], argument: Any) -> None:
        peer = self._link.peer
        failure: ZerohopError
        try:
            await work(lane, argument)
        except ZerohopError as error:
            failure = error
        except NativeError as error:
            failure = from_native(*error.args, peer=peer)
        except Refused as refusal:
            failure = refusal.error(peer)
        except OSError as error:
            failure = from_os(error, peer=peer)
        else:
            return
        # `fail` cancels `lane.task`, which is this very task.
        lane.task = None
        self._lanes.fail(lane, failure, tell=True)


def _check_arrived(message: wire.Lane, fds: list[int]) -> None:
    """Raise OSError if the kernel dropped the descriptors of a message, because this process has no number left."""
    if message.nfds and not fds:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _error(error: NativeError | OSError, peer: str) -> ZerohopError:
    """Return the error of an end that could not be made."""
    if isinstance(error, NativeError):
        return from_native(*error.args, peer=peer)
    return from_os(error, peer=peer)


def _withdraw(invitations: list[asyncio.Future[socket.socket]]) -> None:
    """Stop waiting for sockets; close those that have come all the same. The data plane has copies of its own."""
    for invitation in invitations:
        if not invitation.cancel() and not invitation.cancelled():
            invitation.result().close()
