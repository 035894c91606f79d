"""Posts a transfer on its route; the control thread does it if the route must be found or the lane is full."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError, Status
from zerohop.core.base.tables import oldest
from zerohop.core.control import address
from zerohop.core.lanes.link import lane_error
from zerohop.core.lanes.path_choice import PEER
from zerohop.core.memory.access import check_open, layout_of, registration_of, routes_of
from zerohop.core.memory.layouts import BYTES, same_places, scrambled
from zerohop.core.memory.register import known
from zerohop.core.memory.remote_buffer import LAYOUT, key_of, share_of
from zerohop.core.runtime.deferred import attach, defer
from zerohop.core.runtime.deferred_post import defer_post, lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.first_use import first_use
from zerohop.core.runtime.gate import Gate
from zerohop.core.runtime.native_operation import NBYTES, posted_operation, where
from zerohop.core.runtime.operation import Failed, Operation, complete_fields, on_event_loop
from zerohop.core.runtime.streams import place_of
from zerohop.core.transfers.message_lane import PLAIN
from zerohop.core.transfers.quick_use import QuickUse
from zerohop.errors import PeerLost, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from zerohop._native import Op
    from zerohop.core.lanes.link import Route
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.deferred_operation import Deferred
    from zerohop.core.runtime.streams import Stream

    # Posts natively, given route id and `nowait`; returns what the Post of deferred.py does.
    Post: TypeAlias = Callable[[int, bool], int | tuple[int, int] | Op]

# A route may become stale before it is used. This number of stale routes in a row is an error.
_ATTEMPTS: Final = 4
# Routes that a view remembers before stale ones are removed, and the number of the oldest at which each new one looks.
_MANY_ROUTES: Final = 4096
_OLDEST: Final = 2
# Parses the few URLs that the many handles of a peer name.
_parse: Final = functools.lru_cache(maxsize=64)(address.parse)
# Steps of a first use: connect, open a lane, register, import; some of them may have to be done again.
_MAX_STEPS: Final = 16


def launch(
    core: Core,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    nbytes: int,
    value_from: int,
    deadline_ns: int,
    post: Post,
    *,
    nowait: bool = False,
    room: str = PLAIN,
    own: Callable[[], object] | None = None,
) -> Operation[int]:
    """Find the route and post on it; if either takes time, have the control thread do it.

    ``value_from`` is NBYTES, NATIVE_VALUE or BYTES_DONE; ``room`` is what a full lane may lack (message_lane.py).
    ``own`` is called before this returns if ``post`` is to be called later: it copies what the caller may change.
    """
    core.check_open()
    for _ in range(_ATTEMPTS):
        try:
            route = ready_route(core, view, remote, nowait=nowait)
        except ZerohopError as error:
            complete_fields(error, kind, None)
            return Failed(core, kind, None, nbytes, error)
        if route is None:
            break
        try:
            try:
                posted = post(route.id, True)
            except NativeError as error:
                if error.args[0] != Status.WOULD_BLOCK.value:
                    raise
                if nowait:
                    raise from_native(*error.args, operation=kind, **where(route)) from None
                if on_event_loop():
                    return _post_later(
                        core, kind, view, remote, route, nbytes, value_from, deadline_ns, post, room, own=own
                    )
                posted = post(route.id, False)
        except NativeError as error:
            core.check_open()
            if route.stale:
                continue
            if _lane_broke(route, error):
                break
            return _failure(core, kind, view, route, nbytes, error)
        return posted_operation(core, kind, route, nbytes, posted, view, value_from)
    if nowait:
        # A handle with another address for the same memory fails by itself.
        key = key_of(remote), remote.url
        return first_use(core, kind, nbytes, key, lambda: find_route(core, view, remote))
    return _post_later(core, kind, view, remote, None, nbytes, value_from, deadline_ns, post, room, own=own)


def launch_after(
    core: Core,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    nbytes: int,
    deadline_ns: int,
    post: Callable[..., int | Op],
    stream: Stream,
    room: str,
    own: Callable[[], object] | None = None,
) -> Operation[int]:
    """Launch like ``launch``, but begin the transfer after the work that is queued on a stream by now.

    If a device carries the transfer out, one of its streams waits for the user's; otherwise the control thread waits.
    """
    core.check_open()
    device = view.device if view.device != HOST else remote.device
    place = place_of(core, stream, view.device)
    try:
        route = ready_route(core, view, remote)
    except ZerohopError as error:
        complete_fields(error, kind, None)
        return Failed(core, kind, None, nbytes, error)
    if (
        route is not None
        and route.explanation.form == PEER
        and core.devices.name_of(place.device).partition(":")[0] == device.partition(":")[0]
    ):
        try:
            posted = post(route.id, True, place.number)
        except NativeError as error:
            if error.args[0] != Status.WOULD_BLOCK.value and not route.stale and not _lane_broke(route, error):
                return _failure(core, kind, view, route, nbytes, error)
        else:
            return posted_operation(core, kind, route, nbytes, posted, view, NBYTES)
    try:
        # Mark the stream now, not when posting: the caller may make the stream wait for this operation next.
        reached = core.engine.stream_reached(*place, deadline_ns)
    except NativeError as error:
        core.check_open()
        raise from_native(*error.args, operation=kind) from None
    return _post_later(core, kind, view, remote, route, nbytes, NBYTES, deadline_ns, post, room, reached, own=own)


def ready_route(core: Core, view: Memory | View, remote: RemoteBuffer, *, nowait: bool = False) -> Route | None:
    """Return the route if it exists or can be made at once, else None; ``nowait``: the call cannot be deferred.

    Raises:
        Closed: the Memory is closed.
        ValueError: both are arrays, and their values lie in different orders.
        Unsupported, PeerLost: there is a Connection, and no path over it.
    """
    routes, key = routes_of(view), key_of(remote)
    route: Route | None = routes.get(key)
    if route is not None:
        if not route.stale:
            return route
        routes.pop(key, None)
    check_open(view)
    if layout_of(view) != BYTES:
        check_layouts(view, remote)
    registration = registration_of(view)
    route = registration.routes.get(key)
    if route is None or route.stale:
        link = core.connected.get(remote.owner)
        if link is None:
            return None
        route = core.routes.make(link, registration, share_of(remote), key, at_once=nowait)
        if route is None:
            return None
    if len(routes) >= _MANY_ROUTES:
        # Each new one looks at the oldest, and at no others: a view may have very many.
        for name in oldest(routes, _OLDEST):
            old = routes.pop(name, None)
            if old is not None and not old.stale:
                routes[name] = old
    routes[key] = route
    return route


def prepare(core: Core, local: Any, remote: RemoteBuffer) -> Memory | None:
    """Return a Memory of an array or a tensor, with its route, if both are known; else None. Native posts call this."""
    if core.closed or core.forked:
        return None
    memory = known(core, local)
    if memory is None:
        return None
    key = key_of(remote)
    route: Route | None = registration_of(memory).routes.get(key)
    if route is None or route.stale:
        return None
    layout = layout_of(memory)
    if layout != BYTES and not same_places(layout, share_of(remote).keys.get(LAYOUT, BYTES)):
        return None
    routes_of(memory)[key] = route
    return memory


def check_layouts(view: Memory | View, remote: RemoteBuffer) -> None:
    """Raise ValueError if both are arrays, and their values lie in different orders."""
    here, there = layout_of(view), share_of(remote).keys.get(LAYOUT, BYTES)
    if here != there and not same_places(here, there):
        raise scrambled(here, there)


async def find_route(core: Core, view: Memory | View, remote: RemoteBuffer) -> Route:
    """Connect, open a lane and import the peer's memory, as far as that is needed. On the control thread."""
    peer_address = _parse(remote.url)
    breaks = 0
    for _ in range(_MAX_STEPS):
        link = await core.peers.connect(peer_address)
        session = link.session
        if session is not None:
            # The caller's thread may have noticed a broken lane before this thread handled the event.
            session.lanes.take_down_dead()
        try:
            route = ready_route(core, view, remote)
        except PeerLost:
            breaks += 1
            if link.lost is None or breaks == _ATTEMPTS:
                raise
            continue
        if route is not None:
            return route
        if link.lost is None and session is not None:
            await session.prepare(registration_of(view), share_of(remote))
    raise PeerLost("the connection breaks each time that it is made", peer=remote.owner)


def _post_later(
    core: Core,
    kind: str,
    view: Memory | View,
    remote: RemoteBuffer,
    route: Route | None,
    nbytes: int,
    value_from: int,
    deadline_ns: int,
    post: Post,
    room: str,
    reached: Op | None = None,
    *,
    own: Callable[[], object] | None,
) -> Operation[int]:
    """Have the control thread find the route, unless it is given, and post on it once there is room.

    ``reached`` must end before the post.
    """
    if own is not None:
        own()
    # Thousands of these may wait at once, so that this makes as few objects as it can.
    work = functools.partial(
        _find_and_post, core, view, remote, route, nbytes, value_from, deadline_ns, post, room, reached
    )
    gate = shortcut = None
    if route is None:
        gate = core.gates.get(remote.url) or core.gates.setdefault(remote.url, Gate())
        if reached is None:
            shortcut = functools.partial(
                QuickUse, core, view, remote, nbytes, value_from, deadline_ns, post, ready_route
            )
    return defer(
        core,
        kind,
        nbytes,
        deadline_ns,
        work,
        view,
        peer=remote.owner,
        wants_operation=True,
        gate=gate,
        shortcut=shortcut,
    )


async def _find_and_post(
    core: Core,
    view: Memory | View,
    remote: RemoteBuffer,
    route: Route | None,
    nbytes: int,
    value_from: int,
    deadline_ns: int,
    post: Post,
    room: str,
    reached: Op | None,
    operation: Deferred[int],
) -> int:
    for attempt in range(_ATTEMPTS + 1):
        if route is None:
            route = await find_route(core, view, remote)
        attach(operation, route)
        operation.prepared()
        if reached is not None and attempt == 0:
            await core.loops.running().wait(reached.arm, reached.disarm)
            if reached.status != Status.OK:
                raise from_native(reached.status.value, reached.reason.value)
        try:
            return await _post_on(core, route, room, post, deadline_ns, nbytes, value_from, operation)
        except NativeError as error:
            # A NativeError says that nothing was posted, so that posting again is safe.
            gone = route.link.lost is None and (route.stale or _lane_broke(route, error))
            if not gone or attempt == _ATTEMPTS:
                raise
        route = None
    raise AssertionError  # the last attempt has returned or raised


async def _post_on(
    core: Core,
    route: Route,
    room: str,
    post: Post,
    deadline_ns: int,
    nbytes: int,
    value_from: int,
    operation: Deferred[int],
) -> int:
    def post_on_route(nowait: bool) -> int | tuple[int, int] | Op:
        posted = post(route.id, nowait)
        operation.carried_by(posted)
        return posted

    return await defer_post(core, post_on_route, deadline_ns, nbytes, value_from, route.link.line(room))


def _lane_broke(route: Route, error: NativeError) -> bool:
    """Tell whether a post was refused because its lane is down while its peer lives: another lane may take it."""
    return lane_was_reset(error) and route.link.lost is None


def _failure(
    core: Core, kind: str, view: Memory | View, route: Route, nbytes: int, error: NativeError
) -> Operation[int]:
    """Return the Operation of a post that failed at once."""
    check_open(view)
    failure = lane_error(route.link, error, kind, route.explanation.provider)
    return Failed(core, kind, route, nbytes, failure)
