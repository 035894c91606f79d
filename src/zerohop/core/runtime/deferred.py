"""Runs operations that cannot be posted yet: the control thread prepares for them, then posts and ends them.

The first use of a peer connects, and the first use of its shared memory maps it; neither may hold up the caller. The
user gets an Operation at once. Its deadline and its cancellation work from that moment on, whatever the control thread
is doing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zerohop._native import NativeError, Op, Reason, Status
from zerohop.core.runtime.deferred_operation import Deferred
from zerohop.core.runtime.native_operation import InFlight, begun
from zerohop.core.runtime.operation import Failed, Operation, complete_fields
from zerohop.core.runtime.served import serve
from zerohop.core.runtime.wait import ended
from zerohop.errors import ZerohopError, copy_of, from_native, named

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.runtime.gate import Gate
    from zerohop.core.runtime.operation import Path
    from zerohop.core.runtime.runtime import Runtime

T = TypeVar("T")


def defer(
    core: Runtime,
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
    gate: Gate | None = None,
    shortcut: Callable[[Work], object] | None = None,
    part: Operation[Any] | None = None,
) -> Operation[T]:
    """Return an Operation that takes its value or its error from a coroutine on the control thread.

    Args:
        core: the core of the Context.
        kind: name of the operation.
        nbytes: bytes that it moves.
        deadline_ns: on the monotonic clock; 0: none.
        work: coroutine function for the control thread.
        keep: object that stays alive until the operation has ended.
        peer: id of the peer; errors name it, and a flush to it waits for this operation.
        path: the path, if it is known.
        wants_operation: ``work`` takes the Operation as its argument.
        at_end: called on the control thread when ``work`` has ended or was cancelled.
        gate: where the work waits to begin; whoever passes one has the Operation call ``prepared`` once it is through.
        part: an operation that was posted for this one, as if by ``Deferred.carry``.
        shortcut: does the same as ``work``, without a task, for as far as it goes; it begins or ends the given Work.
    """
    try:
        native = core.engine.new_op(deadline_ns)
    except NativeError as error:
        if at_end is not None:
            at_end()
        core.check_open()
        return Failed(core, kind, path, nbytes, from_native(*error.args, operation=kind))
    whole: Work | None = None
    try:
        operation: Deferred[T] = Deferred(core, kind, path, nbytes, native, keep, peer, part)
        whole = Work(core, operation, at_end, native, (deadline_ns, work, (operation,) if wants_operation else ()))
        if peer:
            core.deferred[operation] = peer
        operation._gate = gate
        if not core.control.call(_come_to, whole, gate, shortcut) and core.control.refused is not None:
            operation.fail(copy_of(core.control.refused))
    except BaseException:
        # It is a signal's handler's. Nobody gets the operation, and a flush must not wait for it.
        native.cancel()
        if whole is not None:
            core.control.call(_take_back, whole)
        elif at_end is not None:
            at_end()
        raise
    return operation


class Work(NamedTuple):
    """Holds the work of a deferred operation until it begins. On the control thread."""

    core: Runtime
    operation: Deferred[Any]
    at_end: Callable[[], object] | None
    native: Op
    to_run: tuple[int, Callable[..., Coroutine[Any, Any, Any]], tuple[Deferred[Any], ...]]

    def begin(self) -> None:
        """Do the work as a task."""
        core, operation, at_end = self.core, self.operation, self.at_end
        operation._task = task = core.control.start(_run, core, operation, self.native, *self.to_run)
        # Not `self.end`, because this would keep the memory until then.
        task.add_done_callback(lambda _: _ended(core, operation, at_end))

    def conclude(self, value: Any, error: Exception | None = None) -> None:
        """End the operation with its value or its error, unless it has ended."""
        _conclude(self.core, self.operation, self.native, value, error)

    def give_up(self, error: BaseException) -> None:
        """End the operation, because a failure, such as lack of memory, has ended the work before its end."""
        try:
            self.conclude(None, error if isinstance(error, Exception) else None)
        finally:
            self.end()

    def end(self) -> None:
        """Tidy up in place of the work."""
        _ended(self.core, self.operation, self.at_end)


def _ended(core: Runtime, operation: Deferred[T], at_end: Callable[[], object] | None) -> None:
    core.deferred.pop(operation, None)
    operation.prepared()
    if at_end is not None:
        at_end()
    operation.forget_work()


def _come_to(work: Work, gate: Gate | None, shortcut: Callable[[Work], object] | None) -> None:
    work.operation._begun = True
    if gate is None:
        _start(work, shortcut)
    else:
        gate.enter(_start, work, shortcut)


def _take_back(work: Work) -> None:
    """End the work of a call that was interrupted, which may have handed it over before that."""
    operation = work.operation
    if operation._begun:
        operation._abort()
    else:
        operation._begun = True
        operation._gate = None  # which it has not entered
        work.end()


def _start(work: Work, shortcut: Callable[[Work], object] | None) -> None:
    if work.operation._gate is not None and work.native.done():  # cancelled, or too late, while it waited at the gate
        work.core.control.call(work.end)
        return
    try:
        if shortcut is not None:
            shortcut(work)
        else:
            work.begin()
    except BaseException as error:
        work.give_up(error)
        raise


async def _run(
    core: Runtime,
    operation: Deferred[T],
    native: Op,
    deadline_ns: int,
    work: Callable[..., Coroutine[Any, Any, T]],
    arguments: tuple[Deferred[T], ...],
) -> None:
    # `native` is an argument of its own, because the Operation drops it when its deadline passes.
    import asyncio

    serve(operation, deadline_ns)
    try:
        payload = await work(*arguments)
    except asyncio.CancelledError:
        if core.closed:
            core.complete(native, Status.CLOSED, Reason.CONTEXT_CLOSED, 0)
        else:  # the operation was cancelled, or a part of it was, and a signal's handler has kept it from the rest
            native.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the waiting caller must get it
        _conclude(core, operation, native, None, error)
    else:
        _conclude(core, operation, native, payload)


def _conclude(
    core: Runtime, operation: Deferred[T], native: Op, payload: T | None, error: Exception | None = None
) -> None:
    operation._payload = payload
    if isinstance(error, NativeError):
        error = from_native(*error.args, operation=operation._kind, **operation._where())
    elif isinstance(error, (MemoryError, OSError)) and isinstance(of_library := named(error), ZerohopError):
        error = of_library
    if error is not None:
        operation._failure = error
    if operation._failure is None:
        core.complete(native, Status.OK, Reason.NONE, payload if isinstance(payload, int) else 0)
    else:
        failure = operation._failure
        if isinstance(failure, ZerohopError):
            complete_fields(failure, operation._kind, operation._path)
            failure.peer = failure.peer or operation._peer
            # The control thread's frames tell a user nothing, and the error would keep their objects alive.
            failure.__traceback__ = failure.__context__ = failure.__cause__ = None
        core.complete(native, Status.UNSUPPORTED, Reason.USER, 0)


def unfinished(core: Runtime, peer: str = "", native_id: int = -1) -> list[Operation[Any]]:
    """Return operations that end with what was deferred, and with the transfers of files, that are under way now.

    Args:
        core: the core of the Context.
        peer: id of the peer; empty: all peers.
        native_id: the engine's id of it; -1: all.
    """
    found: list[Operation[Any]] = [operation for operation, to in core.deferred.copy().items() if peer in ("", to)]
    if core.beside_lanes:
        asked = core.engine.works_under_way_at(native_id)
        found += [begun(InFlight[int](), core, "flush", 0, op, None) for op in asked]
    return found


async def all_ended(operations: list[Operation[Any]]) -> None:
    """Wait until all operations have ended, well or not."""
    for operation in operations:
        await ended(operation)


def attach(operation: Deferred[Any], path: Path) -> None:
    """Let an Operation explain the path that was found for it."""
    operation._path = path
