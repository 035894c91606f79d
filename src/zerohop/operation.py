"""Operation: one transfer in flight, awaitable, and usable without asyncio."""

# ruff: noqa: D102 - what these methods do is said where Operation declares them

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from . import paths
from ._native import InFlight as NativeInFlight
from ._native import NativeError, Status
from .errors import DeadlineExceeded, from_native
from .stays import StaysInProcess

if TYPE_CHECKING:
    from collections.abc import Generator

    from ._native import CompletionQueue, Endpoint, Op
    from .connection import Connection
    from .context import Context
    from .errors import ZerohopError
    from .paths import Explanation
    from .streams import Stream

T = TypeVar("T")


class Path(Protocol):
    """What an Operation knows of the way that it takes."""

    @property
    def connection(self) -> Connection:
        """Over which it goes."""

    @property
    def explanation(self) -> Explanation:
        """Why it takes this way."""


# A wait returns to Python this often, so that Ctrl-C is heard.
_SLICE_NS: Final = 200_000_000
_NS: Final = 1_000_000_000
# How long awaiting may go on without giving the event loop's other tasks a turn.
_TURN_NS: Final = 1_000_000
# About thirty years. Clocks, locks and the engine count nanoseconds in 63 bits, and none of them may overflow.
_LONGEST_S: Final = 10.0**9
# Where the value of an operation that ended well comes from.
NBYTES, NATIVE_VALUE, BYTES_DONE = range(3)


class Operation(StaysInProcess, Generic[T]):
    """One transfer, from the call that started it to its end.

    Wait for it with ``await``, from any event loop, or with ``result()``, from any thread; both any number of times.
    Dropping it does not stop it: the transfer goes on, and its memory stays safe until it has ended. What *done*
    means, and when the data is visible at the target, depends on the call that started it and is said there.

    Cancelling a task that awaits an Operation cancels the Operation.

    Attributes:
        nbytes: bytes that it moves when all goes well; 0 where that is not known before.
    """

    __slots__ = ()

    _stays = "an Operation stays in its process, and is not copied; pass on what its result() gives"

    _context: Context
    _kind: str
    _path: Path | None
    nbytes: int

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> T:
        """Its value, once it has ended.

        Args:
            timeout: seconds to wait; None or ``math.inf``: until it ends, which its own deadline bounds.

        Raises:
            ValueError, TypeError: it is in flight, and ``timeout`` is negative, NaN or no number.
            DeadlineExceeded: ``timeout`` has passed, and the operation is still in flight; or the operation's own
                deadline has, and it is over.
            PeerLost, AccessDenied, Closed, ...: how it failed.
            concurrent.futures.CancelledError: it was cancelled.
        """
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """How it failed, once it has ended; None when it did not.

        Raises:
            ValueError, TypeError: as for ``result``.
            DeadlineExceeded: ``timeout`` has passed, and the operation is still in flight.
            concurrent.futures.CancelledError: it was cancelled.
        """
        raise NotImplementedError

    def cancel(self) -> bool:
        """End it now. False when it had ended before.

        Bytes may have been moved, and until the hardware is done with them the buffers stay pinned.
        """
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        raise NotImplementedError

    def wait_on(self, stream: Stream) -> None:
        """Have a stream of a GPU wait for the end of this, without waiting here.

        What is queued on the stream from now on runs after that. Where this fails, is cancelled, or its deadline
        passes, the stream goes on too: this Operation then has the failure, and what it moved is undefined.

        A first use, of a peer or of its memory, is waited for until the way is found. While a stream waits for what no
        GPU does, a notification or a transfer that is staged, calls of the driver that wait for all streams, such as
        one that pins memory, wait for that too.

        Args:
            stream: a torch, CuPy or cuda-core stream, or the driver's number of one.

        Raises:
            TypeError: not a stream.
            ValueError: the Context has no GPU that the stream could be on.
            Unsupported: the stream is being captured into a graph.
            Closed: the Context is closed.
        """
        from .streams import place_of

        self._context._check_open()
        place = place_of(self._context, stream)
        try:
            self._hold(*place)
        except NativeError as error:
            self._context._check_open()
            raise from_native(*error.args, operation="wait_on") from None

    def _hold(self, device: int, number: int) -> None:
        """Nothing to wait for: it has ended."""

    def explain(self) -> str:
        """The path that it took, and its time: ``shm (mapped) host→host direct, 64.0 MiB in 3.4 ms, 19.7 GB/s``."""
        path = self._path
        return f"{self._kind if path is None else path.explanation}, {self._progress()}"

    def _progress(self) -> str:
        raise NotImplementedError

    def _join(self, timeout: float | None) -> None:
        """Wait until it has ended, whichever way; DeadlineExceeded when the timeout passes first."""

    def _spin(self) -> bool:
        """Wait in place for as long as the Context allows that; whether it has ended."""
        return True

    def _arm(self, queue: CompletionQueue, token: int) -> bool:  # noqa: ARG002
        """Ask for a token when it ends; False when it has."""
        return False

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        """Take that back."""

    def __repr__(self) -> str:
        return f"<Operation {self._kind} of {self.nbytes} bytes, {'done' if self.done() else 'in flight'}>"


class Finished(Operation[T]):
    """One that ended well within the call that started it."""

    __slots__ = ("_context", "_elapsed_ns", "_kind", "_path", "_value", "nbytes")

    def __init__(self, context: Context, kind: str, path: Path | None, nbytes: int, value: T, elapsed_ns: int) -> None:
        self._context = context
        self._kind = kind
        self._path = path
        self.nbytes = nbytes
        self._value = value
        self._elapsed_ns = elapsed_ns

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> T:  # noqa: ARG002
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:  # noqa: ARG002
        return None

    def cancel(self) -> bool:
        return False

    def __await__(self) -> Generator[Any, None, T]:
        if turn_is_over(self._context):
            yield
        return self._value

    def _progress(self) -> str:
        return paths.transfer_text(self.nbytes, self._elapsed_ns)


class Failed(Operation[T]):
    """One that failed within the call that started it."""

    __slots__ = ("_context", "_error", "_kind", "_path", "nbytes")

    def __init__(self, context: Context, kind: str, path: Path | None, nbytes: int, error: BaseException) -> None:
        self._context = context
        self._kind = kind
        self._path = path
        self.nbytes = nbytes
        self._error = error

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> T:  # noqa: ARG002
        raise self._error

    def exception(self, timeout: float | None = None) -> BaseException | None:  # noqa: ARG002
        return self._error

    def cancel(self) -> bool:
        return False

    def __await__(self) -> Generator[Any, None, T]:
        if turn_is_over(self._context):
            yield
        raise self._error

    def _progress(self) -> str:
        return f"failed: {self._error}"


class InFlight(NativeInFlight, Operation[T]):
    """One that the engine carries, and whose value is what it moves. What it comes to is known once it has ended.

    Most are made by the native call that posts them (native/bind/writer.cpp).
    """

    __slots__ = ("_cancelled", "_elapsed_ns", "_error", "_value")

    # None once the outcome has been taken over.
    _native: Op | None
    # The memory, which must not be closed by being dropped while the user still waits for this.
    _keep: object
    _value: T
    _error: BaseException | None
    _cancelled: bool
    nbytes: int

    if TYPE_CHECKING:  # native, and with no call of anything here where it has ended well; else as _outcome

        def result(self, timeout: float | None = None) -> T: ...

    def _begin(self, context: Context, kind: str, path: Path | None, nbytes: int, native: Op, keep: object) -> None:
        self._context = context
        self._kind = kind
        self._path = path
        self.nbytes = nbytes
        self._native = native
        self._keep = keep

    def done(self) -> bool:
        native = self._native
        return native is None or self._context._forked or native.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._join(timeout)
        if self._cancelled:
            raise _cancelled_error()
        return self._error

    def cancel(self) -> bool:
        native = self._native
        return native is not None and not self._context._forked and native.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        native = self._native
        if native is not None:
            context = self._context
            context._check_process()
            try:
                if turn_is_over(context):
                    yield
                if not native.spin(context._spin_ns):
                    yield from context._loops.running().wait(native.arm, native.disarm).__await__()
                    begin_turn(context)
            except BaseException:
                self.cancel()
                raise
            context._check_process()
            self._finish(native)
        if self._cancelled:
            import asyncio

            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return self._value

    def _outcome(self, timeout: float | None = None) -> T:
        self._join(timeout)
        if self._cancelled:
            raise _cancelled_error()
        if self._error is not None:
            raise self._error
        return self._value

    def _join(self, timeout: float | None) -> None:
        native = self._native
        if native is not None:
            self._settle(native, timeout)

    def _hold(self, device: int, number: int) -> None:
        native = self._native
        if native is not None:
            self._context._engine.hold_stream(native, lane_of(self._path), device, number)

    def _spin(self) -> bool:
        native = self._native
        return native is None or self._context._forked or native.spin(self._context._spin_ns)

    def _settle(self, native: Op, timeout: float | None) -> None:
        context = self._context
        context._check_process()
        spin_ns = context._spin_ns
        now = time.monotonic_ns()
        deadline = 0 if timeout is None else deadline_after(timeout)
        while True:
            until = now + _SLICE_NS
            if native.wait(until if not deadline or until < deadline else deadline, spin_ns):
                break
            context._check_process()
            now = time.monotonic_ns()
            if deadline and now >= deadline:
                raise DeadlineExceeded(
                    f"still in flight after {timeout} s",
                    fix="wait again, or cancel() it",
                    operation=self._kind,
                    **self._where(),
                )
            spin_ns = 0
        self._finish(native)

    def _finish(self, native: Op) -> None:
        """Take the outcome over and let the slot go. Twice, from two threads, does no harm."""
        status = native.status
        self._elapsed_ns = native.finished_ns - native.started_ns
        self._cancelled = status == Status.CANCELLED
        self._error = None
        if status == Status.OK:
            self._value = self._value_of(native)
        elif not self._cancelled:
            self._error = self._error_of(native)
        # Last: from here on other threads do not look at the native operation any more.
        self._native = None
        self._keep = None

    def _value_of(self, native: Op) -> T:  # noqa: ARG002 - others have their value from it
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

    def _progress(self) -> str:
        native = self._native
        if native is not None:
            self._context._check_process()
            if not native.done():
                return "in flight"
            self._settle(native, 0)
        if self._cancelled:
            return "cancelled"
        if self._error is not None:
            return f"failed: {self._error}"
        return paths.transfer_text(self.nbytes, self._elapsed_ns)

    def _arm(self, queue: CompletionQueue, token: int) -> bool:
        native = self._native
        return native is not None and native.arm(queue, token)

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        native = self._native
        if native is not None:
            native.disarm(queue, token)


class WithValue(InFlight[T]):
    """One whose value is told by its end: what an atomic found, or how long a message was."""

    __slots__ = ("_value_from",)

    _value_from: int

    def result(self, timeout: float | None = None) -> T:
        return self._outcome(timeout)

    def _value_of(self, native: Op) -> T:
        value: Any = native.value
        if self._value_from == BYTES_DONE:
            value = self.nbytes = native.bytes_done
        return value  # type: ignore[no-any-return]


def in_flight(
    context: Context, kind: str, path: Path | None, nbytes: int, native: Op, keep: object, value_from: int
) -> Operation[int]:
    """The Operation that the engine carries as ``native``."""
    operation: InFlight[int]
    if value_from == NBYTES:
        operation = InFlight()
    else:
        operation = WithValue()
        operation._value_from = value_from
    operation._begin(context, kind, path, nbytes, native, keep)
    return operation


def turn_is_over(context: Context) -> bool:
    """Whether an await must let the loop turn to its other tasks first, even if nothing needs to be waited for.

    Otherwise a coroutine whose operations all end in place would keep the loop to itself. Asked before anything is
    taken or waited for, so that a task that is cancelled there has lost nothing.
    """
    now = time.monotonic_ns()
    if now < context._turn_ends_ns:
        return False
    context._turn_ends_ns = now + _TURN_NS
    return True


def begin_turn(context: Context) -> None:
    """The loop has just turned to this task."""
    context._turn_ends_ns = time.monotonic_ns() + _TURN_NS


def seconds_of(timeout: float) -> float:
    """A timeout that clocks and locks can take: checked, and capped where it is longer than anybody waits.

    Raises:
        ValueError: negative or NaN.
        TypeError: not a number.
    """
    if not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    # Not "< 0", which NaN passes.
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, as {timeout} is")
    return float(timeout) if timeout < _LONGEST_S else _LONGEST_S


def nanoseconds_of(timeout: float) -> int:
    """At least one; 0, which means no timeout, for ``math.inf``. Errors as for ``seconds_of``."""
    seconds = seconds_of(timeout)
    return 0 if timeout == math.inf else max(1, int(seconds * _NS))


def deadline_after(timeout: float) -> int:
    """That many seconds from now, absolute, in native nanoseconds; 0, which means none, for ``math.inf``.

    Raises:
        ValueError, TypeError: as for ``seconds_of``.
    """
    nanoseconds = nanoseconds_of(timeout)
    return time.monotonic_ns() + nanoseconds if nanoseconds else 0


def _cancelled_error() -> BaseException:
    # Only here: it brings in logging and more, which no other path needs.
    from concurrent.futures import CancelledError

    return CancelledError("the operation was cancelled")


def lane_of(path: Path | None) -> Endpoint | None:
    """This side's end of the lane that it is in flight on, where a route tells."""
    number = getattr(path, "lane", None)
    lane = None if path is None or number is None else path.connection._lanes.get(number)
    return None if lane is None else lane.endpoint


def where(path: Path | None) -> dict[str, Any]:
    """The fields of an error that say where it happened."""
    return {} if path is None else {"peer": path.connection.peer, "provider": path.explanation.provider}


def complete_fields(error: ZerohopError, kind: str, path: Path | None) -> None:
    """Say where an error happened, as far as whoever raised it did not know."""
    error.operation = error.operation or kind
    if path is not None:
        error.peer = error.peer or path.connection.peer
        error.provider = error.provider or path.explanation.provider
