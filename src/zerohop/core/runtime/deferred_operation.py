"""Declares Deferred, the Operation of work that the control thread does before it posts."""

# ruff: noqa: D102 - Operation documents these methods

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from zerohop._native import Op, Reason, Status
from zerohop.core.runtime import dropped
from zerohop.core.runtime.native_operation import InFlight
from zerohop.core.runtime.operation import Operation, complete_fields
from zerohop.errors import ZerohopError, copy_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from zerohop.core.runtime.explanation import Explanation
    from zerohop.core.runtime.gate import Gate
    from zerohop.core.runtime.operation import Path
    from zerohop.core.runtime.runtime import Runtime

T = TypeVar("T")
U = TypeVar("U")
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

    __slots__ = (
        "__weakref__",
        "_begun",
        "_failure",
        "_gate",
        "_moved",
        "_part",
        "_payload",
        "_peer",
        "_place",
        "_silence",
        "_task",
        "_turn",
        "parts",
    )

    def __init__(
        self,
        core: Runtime,
        kind: str,
        path: Path | None,
        nbytes: int,
        native: Op,
        keep: object,
        peer: str,
        part: Operation[Any] | None = None,
    ) -> None:
        self._begin(core, kind, path, nbytes, native, keep)
        self._peer = peer
        self._place = dropped.posting_place()
        self._failure: BaseException | None = None
        self._payload: Any = None
        # Bytes that have moved; None: all that were asked for.
        self._moved: int | None = None
        # Held by whoever cancels this, or posts a part of it. Reentrant, for a signal's handler.
        self._turn = threading.RLock()
        # The operation that does all of this one's work now; None: there is none that alone decides.
        self._part = part
        if part is not None:
            self.made_of([part])
        # Makes the error for a deadline that passes now; None: the usual one.
        self._silence: Callable[[], ZerohopError] | None = None
        # The work under way; it is cancelled with the operation.
        self._task: asyncio.Task[None] | Cancellable | None = None
        # Whether the control thread has come to the operation, or has learned that it never will.
        self._begun = False
        # The gate that the operation has still to leave.
        self._gate: Gate | None = None
        # Explanations of the operations that this one was made of; empty until they have ended.
        self.parts: tuple[Explanation, ...] = ()

    def result(self, timeout: float | None = None) -> T:
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def cancel(self) -> bool:
        if self._core.forked:  # the thread that has the turn may be none of this process
            return False
        with self._turn:
            part = self._part
            if part is None:
                cancelled = super().cancel()
            else:
                # A part that has ended decides: it cannot be cancelled, and this operation ends with it soon. If the
                # part is cancelled, the control thread may be faster to cancel this one.
                cancelled = part.cancel() and (super().cancel() or self._is_cancelled())
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

    def moved(self, nbytes: int) -> None:
        """Note how many bytes have moved, if they may be fewer than were asked for."""
        self._moved = nbytes

    def made_of(self, operations: list[Operation[Any]]) -> None:
        """Note the operations that move the bytes."""
        self._carrier = _Parts(operations)

    def go_on(self, post: Callable[[], U]) -> U:
        """Post something for this operation, and return what that gives, unless this operation has ended.

        ``post`` also notes what it has posted (``made_of``): nobody cancels this operation in between.

        Raises:
            asyncio.CancelledError: it has, so that its memory may be in use no more.
        """
        import asyncio

        with self._turn:
            if self.done():
                raise asyncio.CancelledError
            return post()

    def carry(self, post: Callable[[], Operation[Any]]) -> Operation[Any]:
        """Do ``go_on`` for an operation that does all the work from now on, and return it.

        This operation can be cancelled as long as that one can.
        """

        def posted() -> Operation[Any]:
            part = self._part = post()
            self.made_of([part])
            return part

        return self.go_on(posted)

    def _is_cancelled(self) -> bool:
        native = self._native
        return self._cancelled if native is None else native.status == Status.CANCELLED

    def say_when_late(self, silence: Callable[[], ZerohopError] | None) -> None:
        """Note how to make the error if the deadline passes from now on."""
        self._silence = silence

    def forget_work(self) -> None:
        """Let go of what the work was made of, which a user who keeps the operation would keep with it."""
        self._task = self._part = None
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

    def _bytes_moved(self) -> int:
        return self.nbytes if self._moved is None else self._moved

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
