"""Operation: one transfer in flight, awaitable, and usable without asyncio; and those that were over at once."""

# ruff: noqa: D102 - what these methods do is said where Operation declares them

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from zerohop._native import NativeError
from zerohop.core.base.resource import NotCopyable
from zerohop.core.base.units import transfer_text
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Generator

    from zerohop._native import CompletionQueue
    from zerohop.core.context import Context
    from zerohop.core.lanes.paths import Explanation
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.connection import Connection
    from zerohop.errors import ZerohopError

T = TypeVar("T")


class Path(Protocol):
    """What an Operation knows of the way that it takes."""

    @property
    def connection(self) -> Connection:
        """Over which it goes."""

    @property
    def explanation(self) -> Explanation:
        """Why it takes this way."""


# How long awaiting may go on without giving the event loop's other tasks a turn.
_TURN_NS: Final = 1_000_000


class Operation(NotCopyable, Generic[T]):
    """One transfer, from the call that started it to its end.

    Wait for it with ``await``, from any event loop, or with ``result()``, from any thread; both any number of times.
    Dropping it does not stop it: the transfer goes on, and its memory stays safe until it has ended. What *done*
    means, and when the data is visible at the target, depends on the call that started it and is said there.

    Cancelling a task that awaits an Operation cancels the Operation.

    Attributes:
        nbytes: bytes that it moves when all goes well; 0 where that is not known before.
    """

    __slots__ = ()

    _copy_refusal = "an Operation stays in its process, and is not copied; pass on what its result() gives"

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
        from zerohop.core.runtime.streams import place_of

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
        by_page = path is not None and path.explanation.no_kernels and self._kind.endswith("_pages")
        return f"{self._way()}{' page by page' if by_page else ''}, {self._progress()}"

    def _way(self) -> str:
        return self._kind if self._path is None else str(self._path.explanation)

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
        if must_yield(self._context):
            yield
        return self._value

    def _progress(self) -> str:
        return transfer_text(self.nbytes, self._elapsed_ns)


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
        if must_yield(self._context):
            yield
        raise self._error

    def _progress(self) -> str:
        return f"failed: {self._error}"


def must_yield(context: Context) -> bool:
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


def complete_fields(error: ZerohopError, kind: str, path: Path | None) -> None:
    """Say where an error happened, as far as whoever raised it did not know."""
    error.operation = error.operation or kind
    if path is not None:
        error.peer = error.peer or path.connection.peer
        error.provider = error.provider or path.explanation.provider
