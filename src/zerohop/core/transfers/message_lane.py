"""Posting on the lane for messages: at once, in the caller's thread, or later, when there is room or a lane again."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.core.lanes.link import lane_error
from zerohop.core.runtime.deferred import defer, defer_post, first_use, lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.native_operation import in_flight
from zerohop.core.runtime.operation import Failed, Finished, Operation, on_event_loop
from zerohop.errors import WouldBlock, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Op
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.transfers.connection import Connection

_MAX_NOTIFY: Final = (1 << 32) - 1
# What an operation may have to wait for on a full lane; those that wait for one of them stand in one line.
PLAIN: Final = "room in the window"
NOTIFIED: Final = "credit for a notification"
SENT: Final = "room for a message"
RECEIVED: Final = "room for a receive"
# Those that have an order: what waits for one of them, no later one may overtake.
ORDERED: Final = (SENT, RECEIVED)


def notify_value(value: int) -> int:
    """Check a notification's number; raise ValueError unless it has 32 bits."""
    number = operator.index(value)
    if not 0 <= number <= _MAX_NOTIFY:
        raise ValueError(f"a notification carries 32 bits, from 0 to {_MAX_NOTIFY}, not {number}")
    return number


def post_message(
    connection: Connection,
    kind: str,
    view: Memory | View | None,
    deadline_ns: int,
    post: Callable[[bool], int | Op],
    value_from: int,
    *,
    nowait: bool = False,
    need: str = PLAIN,
    over: Connection | None = None,
) -> Operation[int]:
    """Post on the lane for messages; ``post(nowait)`` makes the native call.

    Where the lane is full, or is being replaced, it waits; on an event loop's thread the control thread does. ``over``
    is the end that it is posted at where that is not the Connection's own.
    """
    context, over = connection._context, over or connection
    device, nbytes = (HOST, 0) if view is None else (view.device, view.nbytes)
    context._check_open()
    try:
        posted = _post_now(connection, kind, post, nowait=nowait, need=need)
    except NativeError as error:
        context._check_open()
        failure = lane_error(connection, error, kind, connection._provider)
        return Failed(context, kind, connection._path(device), nbytes, failure)
    except WouldBlock:
        raise
    except ZerohopError as error:
        return Failed(context, kind, None, nbytes, error)
    if posted is None:
        if nowait:
            return first_use(context, kind, nbytes, (connection.peer, kind), over._until_lane)
        return _post_later(connection, kind, view, deadline_ns, post, value_from, need, over)
    if isinstance(posted, int):
        return Finished(context, kind, connection._path(device), nbytes, nbytes, posted)
    return in_flight(context, kind, connection._path(device), nbytes, posted, view, value_from)


def _post_now(
    connection: Connection, kind: str, post: Callable[[bool], int | Op], *, nowait: bool, need: str
) -> int | Op | None:
    """Make the native call; return None if it has to be made later. A nowait call on a full lane raises WouldBlock."""
    try:
        _keep_order(connection, need)
        return post(True)
    except NativeError as error:
        if lane_was_reset(error) and connection._lost is None:
            return None
        if error.args[0] != Status.WOULD_BLOCK.value:
            raise
        if nowait:
            peer, provider = connection.peer, connection._provider
            raise from_native(*error.args, operation=kind, peer=peer, provider=provider) from None
    if on_event_loop() or connection._late.get(need):
        return None
    try:
        return post(False)
    except NativeError as error:
        if lane_was_reset(error) and connection._lost is None:
            return None
        raise


def _post_later(
    connection: Connection,
    kind: str,
    view: Memory | View | None,
    deadline_ns: int,
    post: Callable[[bool], int | Op],
    value_from: int,
    need: str,
    over: Connection,
) -> Operation[int]:
    context, ticket = connection._context, object()
    late: set[object] = connection._late.get(need, set())
    nbytes = 0 if view is None else view.nbytes

    def post_in_turn(nowait: bool) -> int | Op:
        posted = post(nowait)
        late.discard(ticket)
        return posted

    async def work() -> int:
        line = connection._line(need)
        return await defer_post(context, post_in_turn, deadline_ns, nbytes, value_from, line, over._until_lane)

    late.add(ticket)
    at_end = partial(late.discard, ticket)
    path = connection._path(HOST if view is None else view.device)
    return defer(context, kind, nbytes, deadline_ns, work, view, peer=connection.peer, path=path, at_end=at_end)


def _keep_order(connection: Connection, need: str) -> None:
    """Raise the error of a full lane if the operation would overtake others."""
    if connection._late.get(need):
        raise NativeError(Status.WOULD_BLOCK.value, Reason.WINDOW_FULL.value, "")
