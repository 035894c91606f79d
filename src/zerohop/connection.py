"""Connection: the live link to one peer Context."""

from __future__ import annotations

import operator
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import paths
from ._native import NativeError, Reason, Status
from .deferred import all_ended, defer, defer_post, deferred_to
from .errors import Closed, PeerLost, WouldBlock, ZerohopError, from_native
from .inputs import HOST
from .operation import BYTES_DONE, NBYTES, Failed, Finished, InFlight, Operation, seconds_of
from .paths import Explanation
from .stays import StaysInProcess

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from ._native import Endpoint, Op
    from .context import Context
    from .memory import Memory, View
    from .paths import Cost
    from .remote_buffer import Share
    from .routes import Import, Route
    from .session import Session

_MAX_NOTIFY: Final = (1 << 32) - 1
_MAX_IMPORTS: Final = 1024
_PEER: Final = "peer"
# What an operation may have to wait for on a full lane; those that wait for one of them stand in one line.
PLAIN: Final = "room in the window"
NOTIFIED: Final = "credit for a notification"
SENT: Final = "room for a message"


def notify_value(value: int) -> int:
    """A notification's number, checked; ValueError unless it has 32 bits."""
    number = operator.index(value)
    if not 0 <= number <= _MAX_NOTIFY:
        raise ValueError(f"a notification carries 32 bits, from 0 to {_MAX_NOTIFY}, not {number}")
    return number


class LanePath(NamedTuple):
    """What an Operation of a Connection itself, such as ``send``, knows of its way."""

    connection: Connection
    explanation: Explanation


class Connection(StaysInProcess):
    """To one peer Context; made by ``Context.connect``, by the first use of a RemoteBuffer, or by the peer.

    There is one per peer and Context, whoever asked for it first. When the peer dies, every operation to it ends with
    PeerLost, and the next use of the same address connects anew, with a new Connection.

    Attributes:
        peer: id of the peer Context.
        url: where the peer can be reached.
        name: what the peer calls itself.
    """

    __slots__ = (
        "__weakref__",
        "_closing",
        "_context",
        "_endpoint_or_none",
        "_imports",
        "_lane_costs",
        "_lane_paths",
        "_late_sends",
        "_lines",
        "_lost",
        "_missing",
        "_native_id",
        "_partner",
        "_provider",
        "_routes",
        "_session",
        "_unmappable",
        "name",
        "peer",
        "url",
    )

    _stays = "a Connection stays in its process, and is not copied; send its url, and connect() to that there"

    def __init__(self, context: Context, peer: str) -> None:
        self.peer = peer
        self.url = ""
        self.name = ""
        self._context = context
        # What follows is filled in by the session, on the control thread.
        self._session: Session | None = None
        self._native_id = -1
        self._endpoint_or_none: Endpoint | None = None
        self._provider = ""
        self._lane_costs: dict[str, Cost | None] = {}
        # By the device of the memory at this end.
        self._lane_paths: dict[str, LanePath] = {}
        self._missing: dict[str, str] = {}
        self._imports: dict[int, Import] = {}
        self._unmappable: dict[int, str] = {}
        self._routes: dict[Route, None] = {}
        self._lost: ZerohopError | None = None
        # Why it will be lost, once this side has begun to close it.
        self._closing: ZerohopError | None = None
        # Where deferred operations stand, on the control thread; and the sends among them, which no later one may
        # overtake.
        self._lines: dict[str, asyncio.Lock] = {}
        self._late_sends: set[object] = set()
        # The other end, of a Context that talks to itself.
        self._partner: Connection | None = None

    @property
    def alive(self) -> bool:
        """Whether operations can be posted: neither closed here nor known to be lost."""
        endpoint = self._endpoint_or_none
        return not self._context._forked and self._lost is None and endpoint is not None and endpoint.alive

    @property
    def provider(self) -> str:
        """The fabric of the lane that messages and notifications take, such as ``"shm"``."""
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

        return self._post("send", view.nbytes, deadline, post, view, NBYTES, nowait=nowait, need=SENT)

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
        if view._registration.readonly:
            raise ValueError("cannot receive into read-only memory")
        deadline = 0 if timeout is None else self._context._deadline(timeout)
        # A Context that talks to itself sends at one end and receives at the other.
        source = self if self._partner is None else self._partner

        def post(nowait: bool) -> Op:
            return self._context._engine.post_recv(
                source._endpoint, view._registration.region, view._offset, view.nbytes, deadline, nowait
            )

        return self._post("recv", view.nbytes, deadline, post, view, BYTES_DONE)

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

        def post(nowait: bool) -> int | Op:
            return self._context._engine.post_notify(self._endpoint, number, deadline, nowait)

        return self._post("notify", 0, deadline, post, None, NBYTES, nowait=nowait, need=NOTIFIED)

    def flush(self, *, timeout: float | None = None) -> Operation[int]:
        """Done when all that was posted to this peer before is visible there, done or failed; value: 0."""
        deadline = self._context._deadline(timeout)

        def post(_: bool) -> int | Op:
            return self._context._engine.post_flush(self._endpoint, deadline)

        before = deferred_to(self._context, self.peer)
        if before:

            async def work() -> int:
                await all_ended(before)
                return await defer_post(self._context, post, deadline, 0, NBYTES)

            return defer(self._context, "flush", 0, deadline, work, None)
        return self._post("flush", 0, deadline, post, None, NBYTES)

    def statistics(self) -> dict[str, int]:
        """Counters of the lane, by name, since it was made."""
        self._context._check_process()
        endpoint = self._endpoint_or_none
        return {} if endpoint is None or self._lost is not None else dict(endpoint.statistics())

    def close(self, timeout: float = 5.0) -> None:
        """Say goodbye and let go; idempotent. Operations in flight end with Closed here, with PeerLost there.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number of seconds. The Connection stays open.
        """
        if self._lost is None and not self._context._forked and not self._context._closed:
            seconds = seconds_of(timeout)
            error = Closed("this Connection was closed", fix="connect again", peer=self.peer)
            self._context._control.wait(
                self._close, "the peer closed the Connection", error, Status.CLOSED, Reason.LANE_CLOSED, timeout=seconds
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "alive" if self.alive else "lost"
        return f"<Connection to {self.name or self.peer[:12]} over {self._provider or 'nothing yet'}, {state}>"

    @property
    def _endpoint(self) -> Endpoint:
        """The lane's native end; an error when there is none any more."""
        self._check_alive()
        assert self._endpoint_or_none is not None
        return self._endpoint_or_none

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise again(self._lost)
        if self._endpoint_or_none is None:
            raise PeerLost("the connection is not ready", peer=self.peer)

    def _post(
        self,
        kind: str,
        nbytes: int,
        deadline_ns: int,
        post: Any,
        view: Memory | View | None,
        value_from: int,
        *,
        nowait: bool = False,
        need: str = PLAIN,
    ) -> Operation[int]:
        """Post on the lane; where it is full, wait, or on an event loop's thread have the control thread wait."""
        context = self._context
        device = HOST if view is None else view.device
        context._check_open()
        try:
            try:
                self._keep_order(need)
                posted = post(True)
            except NativeError as error:
                if error.args[0] != Status.WOULD_BLOCK.value:
                    raise
                if nowait:
                    full = from_native(*error.args, operation=kind, peer=self.peer, provider=self._provider)
                    raise full from None
                if on_event_loop() or (need is SENT and self._late_sends):
                    return self._post_later(kind, nbytes, deadline_ns, post, view, value_from, need)
                posted = post(False)
        except NativeError as error:
            context._check_open()
            return Failed(context, kind, self._path(device), nbytes, lane_error(self, error, kind))
        except WouldBlock:
            raise
        except ZerohopError as error:
            return Failed(context, kind, None, nbytes, error)
        if isinstance(posted, int):
            return Finished(context, kind, self._path(device), nbytes, nbytes, posted)
        return InFlight(context, kind, self._path(device), nbytes, posted, view, value_from)

    def _post_later(
        self,
        kind: str,
        nbytes: int,
        deadline_ns: int,
        post: Callable[[bool], int | Op],
        view: Memory | View | None,
        value_from: int,
        need: str,
    ) -> Operation[int]:
        context, ticket = self._context, object()

        def post_in_turn(nowait: bool) -> int | Op:
            posted = post(nowait)
            self._late_sends.discard(ticket)
            return posted

        async def work() -> int:
            return await defer_post(context, post_in_turn, deadline_ns, nbytes, value_from, self._line(need))

        if need is SENT:
            self._late_sends.add(ticket)
        at_end = partial(self._late_sends.discard, ticket)
        operation = defer(context, kind, nbytes, deadline_ns, work, view, peer=self.peer, at_end=at_end)
        operation._path = self._path(HOST if view is None else view.device)
        return operation

    def _keep_order(self, need: str) -> None:
        """For a send that would overtake others the lane is as good as full."""
        if need is SENT and self._late_sends:
            raise NativeError(Status.WOULD_BLOCK.value, Reason.WINDOW_FULL.value, "")

    def _line(self, need: str) -> asyncio.Lock:
        """On the control thread: where those stand that wait for the same."""
        import asyncio

        return self._lines.setdefault(need, asyncio.Lock())

    def _path(self, device: str) -> LanePath:
        """The way of messages and notifications: the lane itself. What the peer does with them only the peer knows."""
        path = self._lane_paths.get(device)
        if path is None:
            form = paths.RING if self._provider == "shm" else paths.STREAM
            path = LanePath(self, Explanation(self._provider, form, device == HOST, device, _PEER, ()))
            self._lane_paths[device] = path
        return path

    def _why_not_mapped(self, remote: Share) -> str:
        """Why the peer's memory cannot be mapped here; empty when it can."""
        if not remote.mappable:
            return "the memory is not in a shared file; ctx.alloc gives memory that is"
        return self._unmappable.get(remote.share_id, "")

    async def _close(self, farewell: str, error: ZerohopError, status: Status, reason: Reason) -> None:
        """On the control thread: tell the peer and let go."""
        await self._part(farewell, error, status, reason)
        self._lose(error, status, reason)

    async def _part(self, farewell: str, error: ZerohopError, status: Status, reason: Reason) -> None:
        """On the control thread: end what is in flight, and tell the peer.

        In this order: the peer answers by closing its end, and what is still in flight then has lost its peer.
        """
        if self._lost is not None or self._closing is not None:
            return
        self._closing = error
        self._drop_peer(status, reason)
        if self._session is not None:
            await self._session.say_goodbye(farewell)

    def _lose(self, error: ZerohopError, status: Status, reason: Reason) -> None:
        """On the control thread: nothing goes to or comes from this peer any more. Idempotent."""
        if self._lost is not None:
            return
        error = self._closing or error
        # A copy: the traceback would keep everything alive that its frames know.
        self._lost = again(error)
        context = self._context
        self._drop_peer(status, reason)
        for route in list(self._routes):
            route.drop()
        imports, self._imports = list(self._imports.values()), {}
        for imported in imports:
            context._peers.unmap(imported)
        context._shares.lost(self)
        context._peers.forget(self)
        session, self._session = self._session, None
        self._endpoint_or_none = None
        if session is not None:
            session.end(error)

    def _drop_peer(self, status: Status, reason: Reason) -> None:
        """End what is in flight. The first call counts."""
        if self._native_id >= 0:
            try:
                self._context._engine.drop_peer(self._native_id, status, reason)
            except NativeError:
                # The engine is closed, and all its peers dropped.
                pass

    def _drop_old_imports(self) -> None:
        """On the control thread: give back mappings that nothing uses when there are very many."""
        for share_id, imported in list(self._imports.items())[:-_MAX_IMPORTS]:
            if not imported.routes and self._session is not None:
                del self._imports[share_id]
                self._session.release(share_id, imported)


def lane_error(connection: Connection, error: NativeError, operation: str) -> ZerohopError:
    """What a native call over a lane came to. A lane that is closed though nobody here closed it has lost its peer."""
    status, reason, text = error.args
    where = {"operation": operation, "peer": connection.peer, "provider": connection._provider}
    if status == Status.CLOSED.value:
        connection._context._check_open()
        if connection._lost is not None:
            return from_native(Status.PEER_LOST.value, 0, connection._lost.reason, **where)
        found = connection._context._engine.peer_status(connection._native_id)
        if found[0] != Status.OK:
            status, reason, text = found[0].value, found[1].value, ""
    return from_native(status, reason, text, **where)


def again(error: ZerohopError) -> ZerohopError:
    """A copy of an error, so that raising it to several callers does not grow one traceback."""
    return type(error)(**error._fields())


def silent_error(peer: str, text: str) -> ZerohopError:
    """The error for a peer that takes longer than anybody waits: it may only be stopped."""
    return from_native(Status.DEADLINE.value, Reason.NONE.value, text, peer=peer)


def lost_error(connection: Connection, status: Status, reason: Reason) -> ZerohopError:
    """The error for a peer that the engine found dead."""
    return from_native(status.value, reason.value, peer=connection.peer, provider=connection._provider)


def on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be held up."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def lane_cost(endpoint: Endpoint) -> Cost | None:
    """What the lane says that it costs."""
    return paths.lane_cost(endpoint.limits)
