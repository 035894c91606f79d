"""Connection: the live link to one peer Context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base.backoff import Backoff, is_permanent
from zerohop.core.base.deadlines import seconds_of
from zerohop.core.base.resource import Closeable, NotCopyable
from zerohop.core.lanes import paths
from zerohop.core.lanes.link import LanePath, lost_error
from zerohop.core.lanes.paths import Explanation
from zerohop.core.runtime.deferred import all_ended, defer, defer_post, deferred_to, lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.native_operation import BYTES_DONE, NBYTES
from zerohop.core.transfers.message_lane import NOTIFIED, ORDERED, RECEIVED, SENT, notify_value, post_message
from zerohop.errors import LANE_RESET, Closed, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from zerohop._native import Endpoint, Op
    from zerohop.core.context import Context
    from zerohop.core.lanes.imported import Import
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.lanes.paths import Cost
    from zerohop.core.lanes.routes import Route
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.remote_buffer import Share
    from zerohop.core.peers.session import Session
    from zerohop.core.runtime.operation import Operation

_MAX_IMPORTS: Final = 1024
_PEER: Final = "peer"


class Connection(Closeable, NotCopyable):
    """Connects to one peer Context; made by ``Context.connect``, by the first use of a RemoteBuffer, or by the peer.

    There is one per peer and Context, whoever asked for it first. When the peer dies, every operation to it ends with
    PeerLost, and the next use of the same address connects anew, with a new Connection.

    It has one lane for messages, and one more for each other provider that a transfer has wanted. When a lane between
    NICs breaks while the peer lives, what was in flight on it ends with PeerLost ("lane reset"), and another lane takes
    its place; what was not posted yet waits for that.

    Attributes:
        peer: id of the peer Context.
        url: where the peer can be reached.
        name: what the peer calls itself.
    """

    __slots__ = (
        "__weakref__",
        "_closing",
        "_context",
        "_failed",
        "_imports",
        "_lane_paths",
        "_lanes",
        "_late",
        "_lines",
        "_lost",
        "_message_lane",
        "_missing",
        "_native_id",
        "_parting",
        "_partner",
        "_possible",
        "_provider",
        "_ready",
        "_routes",
        "_session",
        "_unreachable",
        "name",
        "peer",
        "url",
    )

    _copy_refusal = "a Connection stays in its process, and is not copied; send its url, and connect() to that there"

    def __init__(self, context: Context, peer: str) -> None:
        self.peer = peer
        self.url = ""
        self.name = ""
        self._context = context
        # What follows is filled in by the session, on the control thread.
        self._session: Session | None = None
        self._native_id = -1
        # Whether it has had a lane for messages; and the lane itself, None while there is none, and its provider.
        self._ready = False
        self._message_lane: Lane | None = None
        self._provider = ""
        # Those that are up, by number. Replaced and never changed, because any thread reads it.
        self._lanes: dict[int, Lane] = {}
        # By the provider of the lane and the device of the memory at this end.
        self._lane_paths: dict[tuple[str, str], LanePath] = {}
        # Providers that both sides have, with what is known of their cost; why there can be no lane of the others; and
        # those of which none could be opened just now.
        self._possible: dict[str, Cost | None] = {}
        self._missing: dict[str, str] = {}
        self._failed: Backoff[str] = Backoff()
        # By provider and share. Why a share cannot be imported, also by the peer's NICs that it was asked for.
        self._imports: dict[tuple[str, int], Import] = {}
        self._parting: asyncio.Task[None] | None = None
        self._unreachable: Backoff[tuple[str, int, tuple[int, ...]]] = Backoff()
        self._routes: dict[Route, None] = {}
        self._lost: ZerohopError | None = None
        # Why it will be lost, once this side has begun to close it.
        self._closing: ZerohopError | None = None
        # Where deferred operations stand, on the control thread, by what they wait for; and those of them that no later
        # one may overtake.
        self._lines: dict[str, asyncio.Lock] = {}
        self._late: dict[str, set[object]] = {need: set() for need in ORDERED}
        # The other end, of a Context that talks to itself.
        self._partner: Connection | None = None

    @property
    def alive(self) -> bool:
        """Tell whether operations can be posted: the Connection is neither closed here nor known to be lost."""
        if self._context._forked or not self._ready:
            return False
        try:
            self._check_alive()
        except ZerohopError:
            return False
        return True

    @property
    def provider(self) -> str:
        """Return the provider of the lane that messages and notifications take, such as ``"shm"``."""
        return self._provider

    def send(self, source: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Send bytes to whichever ``recv`` of the peer is next in order; value: bytes sent.

        Done means that the source may be reused and the peer has accepted every byte. Messages of one Connection
        arrive in the order in which they were sent. One that is cancelled, or whose deadline passes, before the peer
        has received it is withdrawn.

        Args:
            source: what may stand wherever a View may.
            timeout: seconds, for the operation; None: the Context's.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        return self._send(source, timeout, nowait=False)

    def send_nowait(self, source: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Like ``send``, but raises WouldBlock, with nothing posted, where the lane is full."""
        return self._send(source, timeout, nowait=True)

    def _send(self, source: Memory | View | Any, timeout: float | None, *, nowait: bool) -> Operation[int]:
        view = self._context._view(source)
        deadline = self._context._deadline(timeout)

        def post(nowait: bool) -> Op:
            return self._context._engine.post_send(
                self._endpoint, view._registration.region, view._offset, view.nbytes, deadline, nowait
            )

        return post_message(self, "send", view, deadline, post, NBYTES, nowait=nowait, need=SENT)

    def recv(self, into: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Receive the next message; value: its length.

        Done means that the bytes are in ``into``. A message that is longer than ``into`` fails this Operation.

        Args:
            into: what may stand wherever a View may.
            timeout: seconds, for the operation; None: none, it waits until a message comes or the peer is gone.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        view = self._context._view(into)
        if view.readonly:
            raise ValueError("cannot receive into read-only memory")
        deadline = 0 if timeout is None else self._context._deadline(timeout)
        # A Context that talks to itself sends at one end and receives at the other.
        source = self if self._partner is None else self._partner

        def post(nowait: bool) -> Op:
            return self._context._engine.post_recv(
                source._endpoint, view._registration.region, view._offset, view.nbytes, deadline, nowait
            )

        return post_message(self, "recv", view, deadline, post, BYTES_DONE, need=RECEIVED, over=source)

    def notify(self, value: int, *, timeout: float | None = None) -> Operation[int]:
        """Give the peer a notification without data; value: 0. Done means that the peer's Context has it.

        Raises:
            ValueError: more than 32 bits.
            Closed: at once. Everything else comes from the Operation.
        """
        return self._notify(value, timeout, nowait=False)

    def notify_nowait(self, value: int, *, timeout: float | None = None) -> Operation[int]:
        """Like ``notify``, but raises WouldBlock, with nothing posted, where the lane is full."""
        return self._notify(value, timeout, nowait=True)

    def _notify(self, value: int, timeout: float | None, *, nowait: bool) -> Operation[int]:
        number = notify_value(value)
        deadline = self._context._deadline(timeout)
        post = self._notification(number, deadline)
        return post_message(self, "notify", None, deadline, post, NBYTES, nowait=nowait, need=NOTIFIED)

    def flush(self, *, timeout: float | None = None) -> Operation[int]:
        """Flush: done when all that was posted to this peer before is visible there, done or failed; value: 0."""
        deadline = self._context._deadline(timeout)
        before = deferred_to(self._context, self.peer)
        # Of the lanes that are down, the peer's end may still be placing what came over them.
        gone = self._session is not None and self._session.lanes.any_down
        if self._lost is None and (before or gone or self._message_lane is None or len(self._lanes) > 1):

            async def work() -> int:
                await all_ended(before)
                await self._flush_lanes(deadline)
                return 0

            return defer(self._context, "flush", 0, deadline, work, None)

        def post(_: bool) -> int | Op:
            return self._context._engine.post_flush(self._endpoint, deadline)

        return post_message(self, "flush", None, deadline, post, NBYTES)

    def statistics(self) -> dict[str, int]:
        """Counters of the lanes that are up, by name, since each was made."""
        self._context._check_process()
        sums: dict[str, int] = {}
        for lane in self._lanes.values():
            for name, count in lane.endpoint.statistics().items():
                sums[name] = sums.get(name, 0) + count
        return sums

    def close(self, timeout: float = 5.0) -> None:
        """Close the Connection; idempotent. Operations in flight end with Closed here, with PeerLost at the peer.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number of seconds. The Connection stays open.
        """
        if self._lost is None and not self._context._forked and not self._context._closed:
            seconds = seconds_of(timeout)
            error = Closed("this Connection was closed", fix="connect again", peer=self.peer)
            self._context._control.wait(
                self._close, "the peer closed the Connection", error, Status.CLOSED, Reason.LANE_CLOSED, timeout=seconds
            )

    def __repr__(self) -> str:
        state = "alive" if self.alive else "lost"
        return f"<Connection to {self.name or self.peer[:12]} over {self._provider or 'nothing yet'}, {state}>"

    @property
    def _endpoint(self) -> Endpoint:
        """Return the native end of the lane for messages; raise NativeError (LANE_RESET) if there is none."""
        lane = self._message_lane
        if lane is None:
            self._check_alive()
            raise NativeError(Status.WOULD_BLOCK.value, LANE_RESET, "")
        return lane.endpoint

    def _check_alive(self) -> None:
        """Raise how the peer was lost; the data plane knows it before the control thread does."""
        lost = self._lost or self._closing
        if lost is not None:
            raise copy_of(lost)
        if self._native_id < 0:
            return
        try:
            # A lane may be down while the peer is well.
            status, reason = self._context._engine.peer_status(self._native_id)
        except NativeError:
            raise self._context._closed_error() from None
        if status != Status.OK:
            raise lost_error(self, status, reason)

    def _line(self, need: str) -> asyncio.Lock:
        """Return the lock at which operations queue that wait for the same thing. On the control thread."""
        import asyncio

        return self._lines.setdefault(need, asyncio.Lock())

    def _lane_of(self, provider: str) -> Lane | None:
        return next((lane for lane in self._lanes.values() if lane.provider == provider), None)

    def _notification(self, number: int, deadline_ns: int) -> Callable[[bool], int | Op]:
        """Return a callable that posts the notification."""
        return lambda nowait: self._context._engine.post_notify(self._endpoint, number, deadline_ns, nowait)

    async def _until_lane(self) -> None:
        """Wait for a lane for messages, on the control thread; raise PeerLost if there can be none."""
        self._check_alive()
        if self._session is not None:
            self._session.lanes.look()
            await self._session.lanes.for_messages()

    async def _flush_lanes(self, deadline_ns: int) -> None:
        """Wait, on the control thread, until all that went over any lane is visible at the peer."""
        engine = self._context._engine
        for lane in list(self._lanes.values()):
            try:
                await defer_post(
                    self._context,
                    lambda _, lane=lane: engine.post_flush(lane.endpoint, deadline_ns),  # type: ignore[misc]
                    deadline_ns,
                    0,
                    NBYTES,
                )
            except NativeError as error:
                if not lane_was_reset(error):
                    raise
            except ZerohopError as error:
                error.peer, error.provider = error.peer or self.peer, error.provider or lane.provider
                raise
        self._check_alive()
        if self._session is not None:
            self._session.lanes.look()
            await self._session.lanes.drained()

    def _path(self, device: str) -> LanePath:
        """Return the path of messages and notifications, which is the lane itself."""
        provider = self._provider
        path = self._lane_paths.get((provider, device))
        if path is None:
            form = paths.RING if provider in ("shm", "p2p") else paths.STREAM
            # NICs take them out of buffers of their own.
            direct = device == HOST and provider != "verbs"
            path = LanePath(self, Explanation(provider, form, direct, device, _PEER, ()))
            self._lane_paths[provider, device] = path
        return path

    def _why_not_mapped(self, remote: Share) -> str:
        """Return why the peer's memory cannot be mapped here; empty if it can."""
        if not remote.mappable:
            return "the memory is not in a shared file; ctx.alloc gives memory that is"
        return self._unreachable.why_not(("shm", remote.share_id, ()))

    def _why_not_reached(self, registration: Registration, remote: Share) -> str:
        """Return why the NICs of the present lane cannot reach both memories; empty if they can, or may."""
        lane = self._lane_of("verbs")
        if lane is None:
            return ""
        for domain in lane.domains:
            if why := registration.unregistrable.why_not(domain.number):
                return f"the memory here: {why}"
        why = self._unreachable.why_not(("verbs", remote.share_id, lane.rails))
        return f"the memory there: {why}" if why else ""

    def _why_no_peer_link(self, registration: Registration, remote: Share) -> str:
        """Return why no device here reaches both memories; empty if one does, or nobody has tried."""
        if remote.device == HOST and not remote.mappable:
            return "the memory there is not in a shared file; ctx.alloc gives memory that is"
        for device in ((), (registration.region.device,)):
            if why := self._unreachable.why_not(("p2p", remote.share_id, device)):
                return why
        return ""

    def _note_no_peer_link(self, registration: Registration, remote: Share, error: NativeError) -> None:
        """Record that devices here have tried, and do not reach both memories."""
        key = "p2p", remote.share_id, (registration.region.device,)
        self._unreachable.record_failure(
            key, from_native(*error.args).reason, is_permanent=is_permanent(*error.args[:2])
        )

    def _link(self, registration: Registration, remote: Share) -> str:
        """Return the link by which a device here reaches both memories; empty if nobody has tried."""
        imported = self._imports.get(("p2p", remote.share_id))
        return imported.links.get(registration.region.device, "") if imported is not None else ""

    def _try_again_in(self, registration: Registration, remote: Share) -> float:
        """Return the seconds until a memory that could not be reached may be tried again; infinite if there is none."""
        waits = [
            self._unreachable.seconds_left((provider, remote.share_id, device))
            for provider, device in (("shm", ()), ("p2p", ()), ("p2p", (registration.region.device,)))
        ]
        lane = self._lane_of("verbs")
        if lane is not None:
            waits += [registration.unregistrable.seconds_left(domain.number) for domain in lane.domains]
            waits.append(self._unreachable.seconds_left(("verbs", remote.share_id, lane.rails)))
        return min(waits)

    def _how_registered(self, registration: Registration, remote: Share) -> tuple[tuple[str, str], ...]:
        """Return how the NICs of the present lane have registered both memories, as far as they have."""
        lane = self._lane_of("verbs")
        if lane is None:
            return ()
        here = dict.fromkeys(filter(None, (registration.how.get(domain.number, "") for domain in lane.domains)))
        imported = self._imports.get(("verbs", remote.share_id))
        there = imported.how if imported is not None and imported.rails == lane.rails else ""
        return tuple((where, how) for where, how in (("here", ", ".join(here)), ("there", there)) if how)

    def _rails(self) -> tuple[tuple[str, str], ...]:
        """Return the NIC ports of the present lane, here and there."""
        lane, session = self._lane_of("verbs"), self._session
        if lane is None or session is None:
            return ()
        theirs = [session.lanes.their_nics[place] for place in lane.rails]
        return tuple(
            (f"{domain.device} port {domain.port}", f"{nic.name} port {nic.port}")
            for domain, nic in zip(lane.domains, theirs, strict=True)
        )

    def _reconsider(self) -> None:
        """Drop routes for which no memory was imported: there may be a better path now."""
        self._failed.retry_all()
        self._unreachable.retry_all()
        for route in list(self._routes):
            if route.explanation.form not in paths.IMPORTED:
                route.drop()

    async def _close(self, farewell: str, error: ZerohopError, status: Status, reason: Reason) -> None:
        """Say goodbye and close, on the control thread."""
        await self._part(farewell, error, status, reason)
        self._lose(error, status, reason)

    async def _part(self, farewell: str, error: ZerohopError, status: Status, reason: Reason) -> None:
        """Give back each other's memory, end operations in flight, and say goodbye. On the control thread.

        In this order. Memory that the other side has not let go of by then stays out of use until its process ends. And
        the peer answers a goodbye by closing its end: what is still in flight then has lost its peer.
        """
        # Not at the top: nothing of this is needed by whoever only imports.
        import asyncio

        if self._parting is None and self._lost is None:
            self._closing = error

            async def work() -> None:
                if self._session is not None:
                    await asyncio.gather(self._session.imports.give_all_back(), self._session.exports.ask_all_back())
                self._drop_peer(status, reason)
                if self._session is not None:
                    await self._session.say_goodbye(farewell)

            self._parting = self._context._control.start(work)
        if self._parting is not None:
            # Whoever comes second must not cut it short, nor who does not want to wait so long.
            await asyncio.wait([self._parting])

    def _lose(self, error: ZerohopError, status: Status, reason: Reason) -> None:
        """Lose the Connection: nothing goes to or comes from this peer any more. On the control thread; idempotent."""
        if self._lost is not None:
            return
        error = self._closing or error
        # A copy: the traceback would keep everything alive that its frames know.
        self._lost = copy_of(error)
        context = self._context
        self._drop_peer(status, reason)
        for route in list(self._routes):
            route.drop()
        imports, self._imports = list(self._imports.values()), {}
        for imported in imports:
            context._peers.unmap(imported)
        context._shares.lost(self, self._session.process if self._session is not None else None)
        context._peers.forget(self)
        for owner in context._owners_now():
            owner._connection_lost(self, error)
        session, self._session = self._session, None
        self._message_lane, self._lanes = None, {}
        if session is not None:
            session.end(error)

    def _drop_peer(self, status: Status, reason: Reason) -> None:
        """End the operations in flight. The first call counts."""
        if self._native_id >= 0:
            try:
                self._context._engine.drop_peer(self._native_id, status, reason)
            except NativeError:
                # The engine is closed, and all its peers dropped.
                pass

    def _drop_old_imports(self) -> None:
        """Give back imports that nothing uses if there are very many. On the control thread."""
        for (provider, share_id), imported in list(self._imports.items())[:-_MAX_IMPORTS]:
            if not imported.routes and self._session is not None:
                del self._imports[provider, share_id]
                self._session.imports.release(provider, share_id, imported)
