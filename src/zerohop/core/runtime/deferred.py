"""Runs operations that cannot be posted yet: the control thread prepares for them, then posts and ends them.

The first use of a peer connects, and the first use of its shared memory maps it; neither may hold up the caller. The
user gets an Operation at once. Its deadline and its cancellation work from that moment on, whatever the control thread
is doing.
"""

# ruff: noqa: D102 - Operation documents these methods

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from zerohop._native import NativeError, Op, Reason, Status
from zerohop.core.runtime import dropped
from zerohop.core.runtime.native_operation import InFlight
from zerohop.core.runtime.operation import Failed, Operation, complete_fields
from zerohop.core.runtime.served import serve
from zerohop.core.runtime.wait import ended
from zerohop.errors import ZerohopError, copy_of, from_native, named

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from zerohop.core.runtime.explanation import Explanation
    from zerohop.core.runtime.gate import Gate
    from zerohop.core.runtime.operation import Path
    from zerohop.core.runtime.runtime import Runtime

T = TypeVar("T")
_NS: Final = 1e9
# Nanoseconds between checks whether a first use has found its path.
_FIRST_USE_NS: Final = 1_000_000


class Cancellable(Protocol):
    """Declares work that can be cancelled."""

    def cancel(self) -> object:
        """End the work; on the control thread."""


class _Parts:
    """Stands for the operations that carry out one operation together."""

    def __init__(self, operations: list[Operation[Any]]) -> None:
        self._operations = operations

    def outlived(self) -> _Parts | None:
        """Return this if bytes of any of them may still move, else None."""
        return self if self.held else None

    @property
    def held(self) -> bool:
        """Tell whether bytes of any of them may still move."""
        return any(operation.memory_in_use for operation in self._operations)


class Deferred(InFlight[T]):
    """Represents an operation whose slot the control thread ends once the work is done."""

    __slots__ = ("__weakref__", "_failure", "_gate", "_payload", "_peer", "_place", "_silence", "_task", "parts")

    def __init__(
        self, core: Runtime, kind: str, path: Path | None, nbytes: int, native: Op, keep: object, peer: str
    ) -> None:
        self._begin(core, kind, path, nbytes, native, keep)
        self._peer = peer
        self._place = dropped.posting_place()
        self._failure: BaseException | None = None
        self._payload: Any = None
        # Makes the error for a deadline that passes now; None: the usual one.
        self._silence: Callable[[], ZerohopError] | None = None
        # The work under way; it is cancelled with the operation.
        self._task: asyncio.Task[None] | Cancellable | None = None
        # The gate that the operation has still to leave.
        self._gate: Gate | None = None
        # Explanations of the operations that this one was made of; empty until they have ended.
        self.parts: tuple[Explanation, ...] = ()

    def result(self, timeout: float | None = None) -> T:
        return self._outcome(timeout)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._core.control.call(self._abort)
        return cancelled

    def fail(self, error: ZerohopError) -> None:
        """End the operation with an error unless it has ended, and cancel its work. Any thread may call this."""
        native = self._native
        if native is not None:
            self._failure = self._failure or error
            self._core.complete(native, Status.UNSUPPORTED, Reason.USER, 0)
            self._core.control.call(self._abort)

    def prepared(self) -> None:
        """Leave the gate, if there is one; idempotent. On the control thread."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave()

    def wait_for(self, work: Cancellable) -> None:
        """Note the work under way."""
        self._task = work

    def carried_by(self, posted: object) -> None:
        """Note the operation of the lane that moves the bytes, if the post did not end at once."""
        if isinstance(posted, Op):
            self._carrier = posted

    def made_of(self, operations: list[Operation[Any]]) -> None:
        """Note the operations that move the bytes."""
        self._carrier = _Parts(operations)

    def say_when_late(self, silence: Callable[[], ZerohopError] | None) -> None:
        """Note how to make the error if the deadline passes from now on."""
        self._silence = silence

    def forget_work(self) -> None:
        """Let go of what the work was made of, which a user who keeps the operation would keep with it."""
        self._task = None
        silence, native = self._silence, self._native
        if silence is not None:
            late = native is not None and native.status == Status.DEADLINE
            self._silence = partial(copy_of, silence()) if late else None

    def _abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def __del__(self) -> None:
        if not hasattr(self, "parts"):  # the constructor has raised, and nobody waits for it
            return
        native = self._native
        if native is None or self._core.forked or native.status == Status.PENDING:
            return
        asked = native.asked
        self._finish(native)
        if not self._cancelled:
            dropped.report(self._core, self._kind, self._error, asked=asked, place=self._place, source=self)

    def _hold(self, device: int, number: int) -> None:
        # A first use makes driver calls that may wait for all streams, so no stream may wait before it has ended.
        while self._path is None and not self.done():
            native = self._native
            if native is not None:
                native.wait(time.monotonic_ns() + _FIRST_USE_NS, 0)
        super()._hold(device, number)

    def _value_of(self, native: Op) -> T:  # noqa: ARG002
        return self._payload  # type: ignore[no-any-return]

    def explain(self) -> Explanation:
        explained = super().explain()
        if not self.parts:
            return explained
        first, *others = self.parts
        texts = tuple(str(each._replace(outcome="", others=())) for each in others)
        return first._replace(kind=self._kind, outcome=explained.outcome, others=texts)

    def _where(self) -> dict[str, Any]:
        # The peer is known even before the path is.
        return {"peer": self._peer, **super()._where()}

    def _error_of(self, native: Op) -> BaseException:
        # Reason.USER: `_failure` has ended the slot, and not the deadline.
        if self._failure is not None and native.reason == Reason.USER:
            return self._failure
        silence = self._silence
        refused = self._core.control.refused
        if refused is not None:
            silence = partial(copy_of, refused)
        if native.status == Status.DEADLINE and silence is not None:
            error = silence()
            complete_fields(error, self._kind, self._path)
            return error
        if native.status == Status.CLOSED and self._core.closed:
            return self._core.closed_error()
        return super()._error_of(native)


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
        shortcut: does the same as ``work``, without a task, for as far as it goes; it begins or ends the given Work.
    """
    try:
        native = core.engine.new_op(deadline_ns)
    except NativeError as error:
        if at_end is not None:
            at_end()
        core.check_open()
        return Failed(core, kind, path, nbytes, from_native(*error.args, operation=kind))
    operation: Deferred[T] = Deferred(core, kind, path, nbytes, native, keep, peer)
    if peer:
        core.deferred[operation] = peer
    operation._gate = gate
    arguments = (operation,) if wants_operation else ()
    begin = _start, Work(core, operation, at_end, native, (deadline_ns, work, arguments)), shortcut
    if not core.control.call(*begin if gate is None else (gate.enter, *begin)) and core.control.refused is not None:
        operation.fail(copy_of(core.control.refused))
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
        core.complete(native, Status.CLOSED, Reason.CONTEXT_CLOSED, 0)
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


def deferred_to(core: Runtime, peer: str) -> list[Deferred[Any]]:
    """Return the deferred operations to one peer, or to all peers if ``peer`` is empty, that have not ended."""
    return [operation for operation, to in core.deferred.copy().items() if peer in ("", to)]


async def all_ended(operations: list[Deferred[Any]]) -> None:
    """Wait until all operations have ended, well or not."""
    for operation in operations:
        await ended(operation)


def attach(operation: Deferred[Any], path: Path) -> None:
    """Let an Operation explain the path that was found for it."""
    operation._path = path
