"""Posts on the lane for messages: at once, in the caller's thread, or later, when there is room or a lane again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.config.checks import as_int
from zerohop.core.base.plain_bytes import plain_bytes
from zerohop.core.lanes.link import lane_error
from zerohop.core.runtime.deferred import defer
from zerohop.core.runtime.deferred_post import defer_post, lane_was_reset
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.first_use import first_use
from zerohop.core.runtime.native_operation import NBYTES, posted_operation
from zerohop.core.runtime.operation import Failed, Operation, on_event_loop
from zerohop.errors import WouldBlock, ZerohopError, copy_of, from_native
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Op
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.deferred_operation import Deferred

_MAX_NOTIFY: Final = (1 << 32) - 1
_MAX_MESSAGE: Final = 256
# Kinds of room that a full lane may lack (window: requests in flight). Each has one lock, where operations wait for it.
PLAIN: Final = "room in the window"
NOTIFIED: Final = "credit for a notification"
SENT: Final = "room for a message"
RECEIVED: Final = "room for a receive"
# Kinds with an order: no later operation may overtake one that waits.
ORDERED: Final = (SENT, RECEIVED)


def notify_value(value: int, name: str = "notify") -> int:
    """Check a notification's number, the argument ``name``.

    Raises:
        ValueError: it does not have 32 bits.
        TypeError: it is no integer; True and False are none.
    """
    number = value
    if type(value) is not int:
        if isinstance(value, bool):  # a flag, where a number is meant
            raise TypeError(f"{name} must be an int, not bool")
        number = as_int(name, value)
    if not 0 <= number <= _MAX_NOTIFY:
        raise ValueError(f"{name} must be from 0 to {_MAX_NOTIFY}, the 32 bits of a notification, not {shown(number)}")
    return number


def message_bytes(notify: int | None, message: bytes) -> bytes:
    """Check the message of a notification, and return it as bytes.

    Raises:
        TypeError: not bytes, nor another object with the buffer protocol.
        ValueError: longer than 256 bytes, or there is no notification that it could go with.
    """
    raw = plain_bytes("message", message)
    if len(raw) > _MAX_MESSAGE:
        raise ValueError(f"a notification carries a message of {_MAX_MESSAGE} bytes at most, not {len(raw)}; send() it")
    if notify is None:
        raise ValueError("message= goes with a notification: give notify=, too")
    return raw


def post_message(
    core: Core,
    link: PeerLink,
    kind: str,
    view: Memory | View | None,
    deadline_ns: int,
    post: Callable[[bool], int | Op],
    value_from: int,
    *,
    nowait: bool = False,
    room: str = PLAIN,
    over: PeerLink | None = None,
) -> Operation[int]:
    """Post on the lane for messages; ``post(nowait)`` makes the native call.

    If the lane is full or is being replaced, the call waits; on an event loop's thread, the control thread waits
    instead. ``over``: the link to post at, if it is another: a Context linked to itself has two.
    """
    over = over or link
    device, nbytes = (HOST, 0) if view is None else (view.device, view.nbytes)
    core.check_open()
    try:
        posted = _post_now(link, kind, post, nowait=nowait, room=room)
    except NativeError as error:
        core.check_open()
        failure = lane_error(link, error, kind, link.provider)
        return Failed(core, kind, link.path(device), nbytes, failure)
    except WouldBlock:
        raise
    except ZerohopError as error:
        return Failed(core, kind, None, nbytes, error)
    if posted is None:
        if nowait:
            return first_use(core, kind, nbytes, (link.peer, kind), lambda: until_lane(over))
        return _post_later(core, link, kind, view, deadline_ns, post, value_from, room, over)
    return posted_operation(core, kind, link.path(device), nbytes, posted, view, value_from)


def notify_post(
    core: Core, link: PeerLink, number: int, deadline_ns: int, message: bytes | None = None
) -> Callable[[bool], int | Op]:
    """Return a callable that posts a notification."""
    return lambda nowait: core.engine.post_notify(link.endpoint, number, deadline_ns, nowait, 0, message)


async def until_lane(link: PeerLink) -> None:
    """Wait for a lane for messages, on the control thread; raise PeerLost if there can be none."""
    link.check_alive()
    if link.session is not None:
        link.session.lanes.take_down_dead()
        await link.session.lanes.for_messages()


async def flush_lanes(core: Core, link: PeerLink, deadline_ns: int) -> None:
    """Wait, on the control thread, until all that went over any lane is visible at the peer."""
    for lane in list(link.lanes.values()):
        try:
            await defer_post(
                core,
                lambda _, lane=lane: core.engine.post_flush(lane.endpoint, deadline_ns),  # type: ignore[misc]
                deadline_ns,
                0,
                NBYTES,
            )
        except NativeError as error:
            if not lane_was_reset(error):
                raise lane_error(link, error, "", lane.provider) from None
        except ZerohopError as error:
            error.peer, error.provider = error.peer or link.peer, error.provider or lane.provider
            raise
    link.check_alive()
    if link.session is not None:
        link.session.lanes.take_down_dead()
        await link.session.lanes.drained()


def _post_now(
    link: PeerLink, kind: str, post: Callable[[bool], int | Op], *, nowait: bool, room: str
) -> int | Op | None:
    """Make the native call; return None if it has to be made later. A nowait call on a full lane raises WouldBlock."""
    try:
        try:
            if link.late.get(room):
                # This post would overtake others, so that the lane counts as full.
                raise NativeError(Status.WOULD_BLOCK.value, Reason.WINDOW_FULL.value, "")  # noqa: TRY301
            return post(True)
        except NativeError as error:
            if error.args[0] != Status.WOULD_BLOCK.value or lane_was_reset(error):
                raise
            if nowait:
                raise from_native(*error.args, operation=kind, peer=link.peer, provider=link.provider) from None
        if on_event_loop() or link.late.get(room):
            return None
        return post(False)
    except NativeError as error:
        if not lane_was_reset(error):
            raise
        if link.lost is not None:
            raise copy_of(link.lost) from None
        return None


def _post_later(
    core: Core,
    link: PeerLink,
    kind: str,
    view: Memory | View | None,
    deadline_ns: int,
    post: Callable[[bool], int | Op],
    value_from: int,
    room: str,
    over: PeerLink,
) -> Operation[int]:
    ticket = object()
    late: set[object] = link.late.setdefault(room, set()) if room in ORDERED else set()
    nbytes = 0 if view is None else view.nbytes

    async def work(operation: Deferred[int]) -> int:
        def post_in_turn(nowait: bool) -> int | Op:
            posted = post(nowait)
            late.discard(ticket)
            operation.carried_by(posted)
            return posted

        line = link.line(room)
        return await defer_post(core, post_in_turn, deadline_ns, nbytes, value_from, line, lambda: until_lane(over))

    at_end = partial(late.discard, ticket)
    path = link.path(HOST if view is None else view.device)
    try:
        late.add(ticket)
        return defer(
            core, kind, nbytes, deadline_ns, work, view, peer=link.peer, path=path, at_end=at_end, wants_operation=True
        )
    except BaseException:  # of a signal's handler: others must not wait for what is never posted
        late.discard(ticket)
        raise
