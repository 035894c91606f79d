"""Launching a transfer: its route is found, and it is posted there; by the control thread where either takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Status
from zerohop.core.control import address
from zerohop.core.lanes.link import lane_error
from zerohop.core.lanes.paths import PEER
from zerohop.core.runtime.deferred import Deferred, attach, defer, defer_post, first_use, lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.native_operation import NBYTES, in_flight
from zerohop.core.runtime.operation import Failed, Finished, Operation, complete_fields, on_event_loop
from zerohop.core.runtime.streams import place_of
from zerohop.core.transfers.message_lane import PLAIN
from zerohop.errors import PeerLost, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from zerohop._native import Op
    from zerohop.core.context import Context
    from zerohop.core.lanes.routes import Route
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.streams import Stream

    # Makes the native call: route id, nowait.
    Post: TypeAlias = Callable[[int, bool], int | tuple[int, int] | Op]

# A route may go while it is being found; that often in a row it does not.
_ATTEMPTS: Final = 4
_MANY_ROUTES: Final = 4096
# What a first use may have to do, one after the other: connect, open a lane, register, import; and some of it again.
_MAX_STEPS: Final = 16


def launch(
    context: Context,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    nbytes: int,
    value_from: int,
    deadline_ns: int,
    post: Post,
    *,
    nowait: bool = False,
    need: str = PLAIN,
) -> Operation[int]:
    """Find the route and post on it; where either takes time, have the control thread do it."""
    context._check_open()
    for _ in range(_ATTEMPTS):
        try:
            route = ready_route(context, view, remote, nowait=nowait)
        except ZerohopError as error:
            complete_fields(error, kind, None)
            return Failed(context, kind, None, nbytes, error)
        if route is None:
            break
        try:
            posted = post(route.id, True)
        except NativeError as error:
            if error.args[0] == Status.WOULD_BLOCK.value:
                if nowait:
                    peer, provider = route.connection.peer, route.explanation.provider
                    raise from_native(*error.args, operation=kind, peer=peer, provider=provider) from None
                if on_event_loop():
                    return _post_later(context, kind, view, remote, route, nbytes, value_from, deadline_ns, post, need)
                try:
                    posted = post(route.id, False)
                except NativeError as failure:
                    error = failure
                else:
                    return posted_on(context, kind, view, route, nbytes, value_from, posted)
            context._check_open()
            if route.stale:
                continue
            if _lane_broke(route, error):
                break
            return _failure(context, kind, view, route, nbytes, error)
        return posted_on(context, kind, view, route, nbytes, value_from, posted)
    if nowait:
        return first_use(context, kind, nbytes, remote._key, lambda: find_route(context, view, remote))
    return _post_later(context, kind, view, remote, None, nbytes, value_from, deadline_ns, post, need)


def launch_after(
    context: Context,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    nbytes: int,
    deadline_ns: int,
    post: Callable[..., int | Op],
    stream: Stream,
    need: str,
) -> Operation[int]:
    """The same, after what is queued on a stream by now.

    Where devices carry it out, by having one of their streams wait for that one; else by waiting for it here.
    """
    context._check_open()
    device = view.device if view.device != HOST else remote._share.device
    place = place_of(context, stream, view.device)
    try:
        route = ready_route(context, view, remote)
    except ZerohopError as error:
        complete_fields(error, kind, None)
        return Failed(context, kind, None, nbytes, error)
    if (
        route is not None
        and route.explanation.form == PEER
        and context._devices.name_of(place.device).partition(":")[0] == device.partition(":")[0]
    ):
        try:
            posted = post(route.id, True, place.number)
        except NativeError as error:
            if error.args[0] != Status.WOULD_BLOCK.value and not route.stale and not _lane_broke(route, error):
                return _failure(context, kind, view, route, nbytes, error)
        else:
            return posted_on(context, kind, view, route, nbytes, NBYTES, posted)
    try:
        # Now, and not when it is posted: the caller may have the stream wait for this very operation next.
        reached = context._engine.stream_reached(*place, deadline_ns)
    except NativeError as error:
        context._check_open()
        raise from_native(*error.args, operation=kind) from None
    return _post_later(context, kind, view, remote, route, nbytes, NBYTES, deadline_ns, post, need, reached)


def ready_route(context: Context, view: Memory | View, remote: RemoteBuffer, *, nowait: bool = False) -> Route | None:
    """The route, if nobody needs to be asked for it; ``nowait`` for a call that cannot be put off.

    Raises:
        Closed: the Memory is closed.
        Unsupported, PeerLost: there is a Connection, and no path over it.
    """
    routes, key = view._routes, remote._key
    route = routes.get(key)
    if route is not None:
        if not route.stale:
            return route
        routes.pop(key, None)
    view._home()._check_open()
    registration = view._registration
    route = registration.routes.get(key)
    if route is None or route.stale:
        connection = context._peers.connected.get(remote.owner)
        if connection is None:
            return None
        route = context._routes.make(connection, registration, remote._share, key, at_once=nowait)
        if route is None:
            return None
    if len(routes) > _MANY_ROUTES:
        for stale in [name for name, old in list(routes.items()) if old.stale]:
            routes.pop(stale, None)
    routes[key] = route
    return route


async def find_route(context: Context, view: Memory | View, remote: RemoteBuffer) -> Route:
    """On the control thread: connect, open a lane, and import the peer's memory, as far as that is needed."""
    where = address.parse(remote.url)
    breaks = 0
    for _ in range(_MAX_STEPS):
        connection = await context._peers.connect(where)
        session = connection._session
        if session is not None:
            # Whoever comes here may know of a lane that broke before this thread has been told.
            session.lanes.look()
        try:
            route = ready_route(context, view, remote)
        except PeerLost:
            breaks += 1
            if connection._lost is None or breaks == _ATTEMPTS:
                raise
            continue
        if route is not None:
            return route
        if connection._lost is None and session is not None:
            await session.prepare(view._registration, remote._share)
    raise PeerLost("the connection breaks each time that it is made", peer=remote.owner)


def _post_later(
    context: Context,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    route: Route | None,
    nbytes: int,
    value_from: int,
    deadline_ns: int,
    post: Post,
    need: str,
    reached: Op | None = None,
) -> Operation[int]:
    """Have the control thread find the route, unless there is one, and post on it once there is room.

    ``reached``: but not before that has ended.
    """

    async def work(operation: Deferred[int]) -> int:
        way = route
        for attempt in range(_ATTEMPTS + 1):
            if way is None:
                way = await find_route(context, view, remote)
            attach(operation, way)
            if reached is not None and attempt == 0:
                await context._loops.running().wait(reached.arm, reached.disarm)
                if reached.status != Status.OK:
                    raise from_native(reached.status.value, reached.reason.value)
            try:
                return await _post_on(context, way, need, post, deadline_ns, nbytes, value_from)
            except NativeError as error:
                # Nothing was posted. What was is never posted again: its error is no NativeError.
                gone = way.connection._lost is None and (way.stale or _lane_broke(way, error))
                if not gone or attempt == _ATTEMPTS:
                    raise
            way = None
        raise AssertionError  # the last attempt has returned or raised

    return defer(context, kind, nbytes, deadline_ns, work, view, peer=remote.owner, wants_operation=True)


async def _post_on(
    context: Context, route: Route, need: str, post: Post, deadline_ns: int, nbytes: int, value_from: int
) -> int:
    line = route.connection._line(need)
    return await defer_post(context, lambda nowait: post(route.id, nowait), deadline_ns, nbytes, value_from, line)


def _lane_broke(route: Route, error: NativeError) -> bool:
    """Whether a post was refused because its lane is down while its peer is not: then another lane may take it."""
    return lane_was_reset(error) and route.connection._lost is None


def posted_on(
    context: Context,
    kind: str,
    view: Memory | View,
    route: Route,
    nbytes: int,
    value_from: int,
    posted: int | tuple[int, int] | Op,
) -> Operation[int]:
    """The Operation that a post has become."""
    if isinstance(posted, int):
        return Finished(context, kind, route, nbytes, nbytes, posted)
    if isinstance(posted, tuple):
        return Finished(context, kind, route, nbytes, posted[1], posted[0])
    return in_flight(context, kind, route, nbytes, posted, view, value_from)


def _failure(
    context: Context, kind: str, view: Memory | View, route: Route, nbytes: int, error: NativeError
) -> Operation[int]:
    """A post that failed at once."""
    view._home()._check_open()
    failure = lane_error(route.connection, error, kind, route.explanation.provider)
    return Failed(context, kind, route, nbytes, failure)
