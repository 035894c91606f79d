"""Declares the Operations that the engine carries out."""

# ruff: noqa: D102 - Operation documents these methods

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from zerohop._native import InFlight as NativeInFlight
from zerohop._native import Status
from zerohop.core.base.deadlines import deadline_after
from zerohop.core.base.units import transfer_text
from zerohop.core.runtime import dropped
from zerohop.core.runtime.operation import Finished, Operation, begin_turn, must_yield
from zerohop.errors import DeadlineExceeded, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from zerohop._native import CompletionQueue, Op
    from zerohop.core.runtime.operation import Path
    from zerohop.core.runtime.runtime import Runtime

T = TypeVar("T")

# Nanoseconds after which a wait returns to Python, so that Ctrl-C is heard.
CTRL_C_NS: Final = 200_000_000
# The value of an operation that ended well: the bytes asked for, the native value, or the bytes moved.
NBYTES, NATIVE_VALUE, BYTES_DONE = range(3)


class Held(Protocol):
    """Declares what remains of an operation that has ended before its lane was done with it. It keeps no engine."""

    @property
    def held(self) -> bool:
        """Tell whether a lane may still move its bytes."""


class Carrier(Protocol):
    """Declares an operation of a lane, or several, that move the bytes."""

    def outlived(self) -> Held | None:
        """Return what tells until when a lane holds it; None if none does any more. Called after its end."""


class InFlight(NativeInFlight, Operation[T]):
    """Represents an operation that the engine carries out; its value is the number of bytes that it moves.

    The native call that posts a transfer makes most of these objects (native/bind/transfers.cpp).
    """

    __slots__ = ("_cancelled", "_carrier", "_elapsed_ns", "_error", "_left", "_name", "_value")

    # None once `_finish` has read the outcome.
    _native: Op | None
    # The operation of the lane that moves the bytes, if that is another than the native one; None once it has ended.
    _carrier: Carrier | None
    # The operation of a lane that may still move the bytes after the end; not set after one that ended well.
    _left: Held | None
    # Keeps the Memory alive: if dropped, it would close while the user still waits for this operation.
    _keep: object
    _value: T
    _error: BaseException | None
    # Adds to an error what only a face knows, such as the rank; set only by a face.
    _name: Callable[[ZerohopError], None]
    _cancelled: bool
    nbytes: int

    if TYPE_CHECKING:  # native code has this method, and calls _outcome unless the operation has ended well

        def result(self, timeout: float | None = None) -> T: ...

    @staticmethod
    def _dropped(
        core: Runtime, kind: str, path: Path | None, status: int, reason: int, nbytes: int, asked: bool
    ) -> None:
        """Report an operation that is being freed, and whose outcome nobody has taken. Native code calls this.

        It does so neither for writes that have not failed nor for what was cancelled.
        """
        try:
            error = None
            if status not in (Status.OK.value, Status.PENDING.value):
                error = from_native(status, reason, operation=kind, bytes_done=nbytes, **where(path))
            dropped.report(core, kind, error, asked=asked)
        except AttributeError:  # the Context is garbage, too, and the collector has taken it apart already
            pass

    def _begin(self, core: Runtime, kind: str, path: Path | None, nbytes: int, native: Op, keep: object) -> None:
        self._core = core
        self._kind = kind
        self._path = path
        self.nbytes = nbytes
        self._native = native
        self._keep = keep

    def done(self) -> bool:
        native = self._native
        return native is None or self._core.forked or native.done()

    @property
    def memory_in_use(self) -> bool:
        core, native = self._core, self._native
        if core.forked:
            return False
        if native is not None:
            if not native.done():
                return True
            self._wait(native, 0)
        left: Held | None = getattr(self, "_left", None)
        return left is not None and not core.closed and left.held

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._join(timeout)
        if self._cancelled:
            raise cancelled_error()
        return self._error

    def cancel(self) -> bool:
        native = self._native
        return native is not None and not self._core.forked and native.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        native = self._native
        if native is not None:
            core = self._core
            core.check_process()
            try:
                if must_yield(core):
                    yield
                if not native.spin(core.spin_ns):
                    yield from core.loops.running().wait(native.arm, native.disarm).__await__()
                    begin_turn(core)
            except BaseException:
                self.cancel()
                raise
            core.check_process()
            self._finish(native)
        if self._cancelled:
            import asyncio

            raise asyncio.CancelledError
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # which has the error, whose traceback has this frame
        return self._value

    def _outcome(self, timeout: float | None = None) -> T:
        self._join(timeout)
        if self._cancelled:
            raise cancelled_error()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # which has the error, whose traceback has this frame
        return self._value

    def _join(self, timeout: float | None) -> None:
        native = self._native
        if native is not None:
            self._wait(native, timeout)

    def _hold(self, device: int, number: int) -> None:
        native = self._native
        if native is not None:
            endpoint = None if self._path is None else self._path.endpoint()
            self._core.engine.hold_stream(native, endpoint, device, number)

    def _spin(self) -> bool:
        native = self._native
        return native is None or self._core.forked or native.spin(self._core.spin_ns)

    def _wait(self, native: Op, timeout: float | None) -> None:
        """Wait for the end, ``timeout`` seconds at most, and take the outcome."""
        core = self._core
        core.check_process()
        spin_ns = core.spin_ns
        now = time.monotonic_ns()
        deadline = 0 if timeout is None else deadline_after(timeout)
        while True:
            until = now + CTRL_C_NS
            if native.wait(until if not deadline or until < deadline else deadline, spin_ns):
                break
            core.check_process()
            now = time.monotonic_ns()
            if deadline and now >= deadline:
                late = DeadlineExceeded(
                    f"still in flight after {timeout} s",
                    fix="wait again, or cancel() it",
                    operation=self._kind,
                    **self._where(),
                )
                self._complete(late)
                raise late
            spin_ns = 0
        self._finish(native)

    def _finish(self, native: Op) -> None:
        """Take over the outcome and release the native slot. Two threads may do this at once."""
        status = native.status
        self._elapsed_ns = native.finished_ns - native.started_ns
        self._cancelled = status == Status.CANCELLED
        self._error = None
        if status == Status.OK:
            self._value = self._value_of(native)
        else:
            carrier = getattr(self, "_carrier", native)
            if carrier is not None:  # or another thread has taken the outcome
                self._left = carrier.outlived()
            if not self._cancelled:
                self._error = self._error_of(native)
                if isinstance(self._error, ZerohopError):
                    self._error.memory_in_use = getattr(self, "_left", None) is not None
                    self._complete(self._error)
        self._carrier = None
        # This is set last, because other threads then take the outcome from this object.
        self._native = None
        self._keep = None

    def _value_of(self, native: Op) -> T:  # noqa: ARG002 - subclasses take their value from it
        value: Any = self.nbytes
        return value  # type: ignore[no-any-return]

    def _error_of(self, native: Op) -> BaseException:
        return from_native(
            native.status.value,
            native.reason.value,
            operation=self._kind,
            bytes_done=native.bytes_done,
            **self._where(),
        )

    def _where(self) -> dict[str, Any]:
        return where(self._path)

    def _name_errors(self, name: Callable[[ZerohopError], None]) -> None:
        self._name = name

    def _complete(self, error: ZerohopError) -> None:
        """Have the face that has begun this add to an error what the core does not know."""
        name = getattr(self, "_name", None)
        if name is not None:
            name(error)

    def _progress(self) -> str:
        native = self._native
        if native is not None:
            self._core.check_process()
            if not native.done():
                return "in flight"
            self._wait(native, 0)
        if self._cancelled:
            return "cancelled"
        if self._error is not None:
            return f"failed: {self._error}"
        return transfer_text(self._bytes_moved(), self._elapsed_ns)

    def _bytes_moved(self) -> int:
        """Return how many bytes have moved, once it has ended well."""
        return self.nbytes

    def _arm(self, queue: CompletionQueue, token: int) -> bool:
        native = self._native
        return native is not None and native.arm(queue, token)

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        native = self._native
        if native is not None:
            native.disarm(queue, token)


class WithValue(InFlight[T]):
    """Represents an operation whose value is known at its end: an atomic's old value, or the length of a message."""

    __slots__ = ("_value_from",)

    _value_from: int

    def result(self, timeout: float | None = None) -> T:
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def _value_of(self, native: Op) -> T:
        value: Any = native.value
        if self._value_from == BYTES_DONE:
            value = self.nbytes = native.bytes_done
        return value  # type: ignore[no-any-return]


def posted_operation(
    core: Runtime,
    kind: str,
    path: Path | None,
    nbytes: int,
    posted: int | tuple[int, int] | Op,
    keep: object,
    value_from: int,
) -> Operation[int]:
    """Return the Operation of a native call that succeeded; ``posted`` is what a `Post` of deferred.py returns."""
    if isinstance(posted, int):
        return Finished(core, kind, path, nbytes, nbytes, posted)
    if isinstance(posted, tuple):
        return Finished(core, kind, path, nbytes, posted[1], posted[0])
    operation: InFlight[int]
    if value_from == NBYTES:
        operation = InFlight()
    else:
        operation = WithValue()
        operation._value_from = value_from
    operation._begin(core, kind, path, nbytes, posted, keep)
    return operation


def begun(
    operation: InFlight[T], core: Runtime, kind: str, nbytes: int, posted: Op, keep: object, path: Path | None = None
) -> InFlight[T]:
    """Return an Operation of a subclass, for a native call that succeeded."""
    operation._begin(core, kind, path, nbytes, posted, keep)
    return operation


def cancelled_error() -> BaseException:
    """Return the error that a cancelled operation raises outside asyncio."""
    # Imported here because concurrent.futures imports logging, which nothing else needs.
    from concurrent.futures import CancelledError

    return CancelledError("the operation was cancelled")


def where(path: Path | None) -> dict[str, Any]:
    """Return the fields of an error that say where it happened."""
    return {} if path is None else {"peer": path.peer, "provider": path.explanation.provider}
