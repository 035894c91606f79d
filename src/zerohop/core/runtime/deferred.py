"""Operations that cannot be posted yet: the control thread prepares what they need, then posts and ends them.

First use of a peer connects, and first use of its shared memory maps it; neither may hold up the caller. The user gets
an Operation at once. Its deadline and its cancellation work from that moment, whatever the control thread is doing.
"""

# ruff: noqa: D102 - what these methods do is said where Operation declares them

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop._native import NativeError, Reason, Status
from zerohop.core.runtime.native_operation import BYTES_DONE, NATIVE_VALUE, NBYTES, InFlight
from zerohop.core.runtime.operation import Failed, Operation, complete_fields
from zerohop.core.runtime.wait import ended
from zerohop.errors import LANE_RESET, WouldBlock, ZerohopError, copy_of, from_native, silent_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from zerohop._native import Op
    from zerohop.core.context import Context
    from zerohop.core.runtime.operation import Path
    from zerohop.core.transfers.connection import Connection

    # Makes the native call: nowait.
    Post = Callable[[bool], int | Op | tuple[int, int]]

T = TypeVar("T")
# How long what is no operation waits for the answer to a request.
REPLY_S: Final = 10.0
# Between attempts at a full lane.
_RETRY_S: Final = 0.0005
_MAX_RETRY_S: Final = 0.01
_NS: Final = 1e9
# Lanes that break one after the other while one operation waits to be posted; then it is told.
_MAX_RESETS: Final = 8
# Between looks at whether a first use has got as far as it needs.
_FIRST_USE_NS: Final = 1_000_000
# Failures of first uses that wait to be told.
_MAX_UNTOLD: Final = 4096
# Of the operation that a task of the control thread works for; 0: it has none. Unset in what works for no operation.
_deadline_ns: ContextVar[int] = ContextVar("zerohop_deadline_ns")


class Deferred(InFlight[T]):
    """Its native slot is ended by the control thread, after the native operation that does the work."""

    __slots__ = ("__weakref__", "_failure", "_payload", "_peer", "_task", "ways")

    def __init__(
        self, context: Context, kind: str, path: Path | None, nbytes: int, native: Op, keep: object, peer: str
    ) -> None:
        self._begin(context, kind, path, nbytes, native, keep)
        self._peer = peer
        self._failure: BaseException | None = None
        self._payload: Any = None
        self._task: asyncio.Task[None] | None = None
        # Of one that is made of others, once they have ended: their paths.
        self.ways: tuple[str, ...] = ()

    def result(self, timeout: float | None = None) -> T:
        return self._outcome(timeout)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._context._control.call(self._abort)
        return cancelled

    def fail(self, error: ZerohopError) -> None:
        """End it so, unless it has ended; what it has under way is given up. Any thread."""
        native = self._native
        if native is not None:
            self._failure = self._failure or error
            self._context._complete(native, Status.UNSUPPORTED, Reason.USER, 0)
            self._context._control.call(self._abort)

    def _abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _hold(self, device: int, number: int) -> None:
        # A first use needs calls of the driver that may wait for all its streams: it comes before one that waits here.
        while self._path is None and not self.done():
            native = self._native
            if native is not None:
                native.wait(time.monotonic_ns() + _FIRST_USE_NS, 0)
        super()._hold(device, number)

    def _value_of(self, native: Op) -> T:  # noqa: ARG002
        return self._payload  # type: ignore[no-any-return]

    def _way(self) -> str:
        return ", and ".join(self.ways) or super()._way()

    def _where(self) -> dict[str, Any]:
        # Until the path is known, the peer at least.
        return {"peer": self._peer, **super()._where()}

    def _error_of(self, native: Op) -> BaseException:
        # The slot may have ended by its deadline before the control thread had anything to say.
        if self._failure is not None and native.reason == Reason.USER:
            return self._failure
        if native.status == Status.CLOSED and self._context._closed:
            return self._context._closed_error()
        return super()._error_of(native)


def lane_was_reset(error: Exception) -> bool:
    """Whether a native call was refused because its lane is down, or is being replaced: nothing was posted."""
    return isinstance(error, NativeError) and error.args[1] == LANE_RESET


def defer(
    context: Context,
    kind: str,
    nbytes: int,
    deadline_ns: int,
    work: Callable[[], Coroutine[Any, Any, T]] | Callable[[Deferred[T]], Coroutine[Any, Any, T]],
    keep: object,
    *,
    peer: str = "",
    path: Path | None = None,
    wants_operation: bool = False,
    at_end: Callable[[], object] | None = None,
) -> Operation[T]:
    """An Operation that ``work``, a coroutine function for the control thread, gives its value or its error.

    ``peer`` is whom it moves something to or from, for a flush to wait for it and for errors to name it; ``path`` the
    way, where that is known. ``at_end`` is called on the control thread once ``work`` has ended or been given up.
    """
    try:
        native = context._engine.new_op(deadline_ns)
    except NativeError as error:
        if at_end is not None:
            at_end()
        context._check_open()
        return Failed(context, kind, path, nbytes, from_native(*error.args, operation=kind))
    operation: Deferred[T] = Deferred(context, kind, path, nbytes, native, keep, peer)
    if peer:
        context._deferred[operation] = peer
    start: Any = (lambda: work(operation)) if wants_operation else work  # type: ignore[call-arg]
    context._control.call(_start, context, operation, native, start, deadline_ns, at_end)
    return operation


def seconds_left(otherwise: float | None = None) -> float | None:
    """On the control thread: seconds that are left to the operation that the running task works for.

    None: it has no deadline. ``otherwise``, or else what any request may take: the task works for no operation.
    """
    deadline_ns = _deadline_ns.get(None)
    if deadline_ns is None:
        return REPLY_S if otherwise is None else otherwise
    return max(0.0, (deadline_ns - time.monotonic_ns()) / _NS) if deadline_ns else None


async def wait_shared(future: asyncio.Future[Any], connection: Connection, limit: float | None) -> None:
    """On the control thread: until it is done, for ``limit`` seconds; others may wait for it too, each in its own time.

    Raises:
        DeadlineExceeded: it is not done, which waits for the peer; it stays under way.
        ZerohopError: how it failed; or how the Connection was lost, if that is why it was given up.
    """
    import asyncio

    await asyncio.wait([future], timeout=limit)
    if not future.done():
        raise silent_error(connection.peer, "the peer does not answer")
    if future.cancelled() and connection._lost is not None:
        raise copy_of(connection._lost)
    try:
        future.result()
    except ZerohopError as error:
        raise copy_of(error) from None


def _start(
    context: Context,
    operation: Deferred[T],
    native: Op,
    work: Callable[[], Coroutine[Any, Any, T]],
    deadline_ns: int,
    at_end: Callable[[], object] | None,
) -> None:
    operation._task = task = context._control.start(_run, context, operation, native, work, deadline_ns)
    task.add_done_callback(lambda _: context._deferred.pop(operation, None))
    if at_end is not None:
        task.add_done_callback(lambda _: at_end())


async def _run(
    context: Context,
    operation: Deferred[T],
    native: Op,
    work: Callable[[], Coroutine[Any, Any, T]],
    deadline_ns: int,
) -> None:
    # `native` is passed apart, because the Operation lets go of it when its deadline passes.
    import asyncio

    _deadline_ns.set(deadline_ns)
    nbytes = 0
    try:
        operation._payload = await work()
        nbytes = operation._payload if isinstance(operation._payload, int) else 0
    except asyncio.CancelledError:
        context._complete(native, Status.CLOSED, Reason.CONTEXT_CLOSED, 0)
        raise
    except NativeError as error:
        operation._failure = from_native(*error.args, operation=operation._kind, **operation._where())
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits must get it
        operation._failure = error
    if operation._failure is None:
        context._complete(native, Status.OK, Reason.NONE, nbytes)
    else:
        failure = operation._failure
        if isinstance(failure, ZerohopError):
            complete_fields(failure, operation._kind, operation._path)
            failure.peer = failure.peer or operation._peer
            # The control thread's frames say nothing to a user, and would keep all that they know alive with the error.
            failure.__traceback__ = failure.__context__ = failure.__cause__ = None
        context._complete(native, Status.UNSUPPORTED, Reason.USER, 0)


async def defer_post(
    context: Context,
    post: Post,
    deadline_ns: int,
    nbytes: int,
    value_from: int,
    line: asyncio.Lock | None = None,
    lane: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """On the control thread: post as soon as the lane takes it, wait for the end, give the value.

    ``post(nowait)`` makes the native call. ``line`` is where those stand that wait for the same kind of room: the first
    of them alone asks for it, and they are posted in the order in which they were deferred. ``lane()`` returns once
    there is a lane, and is asked again where it breaks before anything was posted; without it, that is an error.
    """
    import asyncio

    if line is None:
        posted = await _post_when_room(post, deadline_ns, lane)
    else:
        async with line:
            posted = await _post_when_room(post, deadline_ns, lane)
    if isinstance(posted, int):
        return nbytes
    if isinstance(posted, tuple):
        return posted[1]
    try:
        await context._loops.running().wait(posted.arm, posted.disarm)
    except asyncio.CancelledError:
        posted.cancel()
        raise
    if posted.status == Status.OK:
        return {NBYTES: nbytes, NATIVE_VALUE: posted.value, BYTES_DONE: posted.bytes_done}[value_from]
    if posted.status == Status.CANCELLED:
        raise asyncio.CancelledError
    raise from_native(posted.status.value, posted.reason.value, bytes_done=posted.bytes_done)


async def _post_when_room(
    post: Post, deadline_ns: int, lane: Callable[[], Coroutine[Any, Any, None]] | None
) -> int | Op | tuple[int, int]:
    import asyncio

    pause = _RETRY_S
    resets = 0
    while True:
        if lane is not None:
            await lane()
        # Before the first attempt too: connecting may have taken longer than the user allowed.
        if deadline_ns and time.monotonic_ns() > deadline_ns:
            raise NativeError(Status.DEADLINE.value, Reason.NONE.value, "nothing was posted")
        try:
            return post(True)
        except NativeError as error:
            if lane is not None and lane_was_reset(error) and resets < _MAX_RESETS:
                resets += 1
            elif error.args[0] != Status.WOULD_BLOCK.value:
                raise
        await asyncio.sleep(pause)
        pause = min(_MAX_RETRY_S, pause * 2)


def deferred_to(context: Context, peer: str) -> list[Deferred[Any]]:
    """What has not been posted to a peer yet, or has not ended since; of all peers when that is empty."""
    return [operation for operation, to in context._deferred.copy().items() if peer in ("", to)]


async def all_ended(operations: list[Deferred[Any]]) -> None:
    """Until they have, well or not."""
    for operation in operations:
        await ended(operation)


def attach(operation: Deferred[Any], path: Path) -> None:
    """Let an Operation explain the path that was found for it."""
    operation._path = path


def first_use(
    context: Context, kind: str, nbytes: int, key: object, prepare: Callable[[], Coroutine[Any, Any, object]]
) -> Operation[int]:
    """What a _nowait call comes to that needs what is not there yet: WouldBlock while ``prepare`` is at it.

    A preparation that failed is told by the next call, once; the call after it tries again.
    """
    preparing = context._preparing
    failure = preparing.get(key)
    if failure is not None:
        preparing.pop(key, None)
        return Failed(context, kind, None, nbytes, failure)
    if key not in preparing:
        preparing[key] = None
        context._control.spawn(_prepare, preparing, key, prepare)
    raise WouldBlock("first use: asking the peer for what this needs", operation=kind, fix="try again soon")


async def _prepare(
    preparing: dict[object, Exception | None], key: object, prepare: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    failure: Exception | None = None
    try:
        await prepare()
    except ZerohopError as error:
        failure = copy_of(error)
    except NativeError as error:
        failure = from_native(*error.args)
    except Exception as error:  # noqa: BLE001 - whatever it is, a warning too: the next call must not wait for ever
        failure = error
    preparing.pop(key, None)
    if failure is not None:
        preparing[key] = failure
        # Of handles that nobody asks about again, the oldest.
        if len(preparing) > _MAX_UNTOLD:
            preparing.pop(next(iter(preparing)), None)
