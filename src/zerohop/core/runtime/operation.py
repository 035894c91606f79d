"""Declares Operation, a transfer in flight, and the operations that end within the call that starts them."""

# ruff: noqa: D102 - Operation documents the methods of its subclasses

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from zerohop._native import NativeError
from zerohop.core.base.frameworks import NO_LOOP
from zerohop.core.base.resource import NotCopyable
from zerohop.core.base.units import transfer_text
from zerohop.core.runtime import dropped
from zerohop.errors import ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from zerohop._native import CompletionQueue, Endpoint
    from zerohop.core.runtime.explanation import Explanation
    from zerohop.core.runtime.runtime import Runtime
    from zerohop.core.runtime.streams import Stream

T = TypeVar("T")


class Path(Protocol):
    """Describes the path of an Operation."""

    @property
    def peer(self) -> str:
        """Return the id of the peer."""

    @property
    def explanation(self) -> Explanation:
        """Return why the Operation takes this path."""

    def endpoint(self) -> Endpoint | None:
        """Return this side's end of the lane that carries out the Operation; None if the path does not name one."""


# Nanoseconds for which a task may await one operation after the other before the loop's other tasks get a turn.
_TURN_NS: Final = 1_000_000
_NO_FUTURE: Final = (
    "an Operation is no Future, of concurrent.futures or of asyncio; type `zerohop.wait_all(operations, timeout)`, "
    "`await zerohop.gather(operations)` or `zerohop.as_completed(operations)`"
)


class Operation(NotCopyable, Generic[T]):
    """Follows one transfer from the call that started it to its end.

    Wait for it with ``await``, from any event loop, or with ``result()``, from any thread; both any number of times.
    Dropping it does not stop the transfer, whose memory stays safe until it has ended. The call that started the
    transfer documents what *done* means, and when the data is visible at the target.

    Cancelling a task that awaits an Operation cancels the Operation.

    Attributes:
        nbytes: bytes that it moves when all goes well; 0 if that is not known before.
    """

    __slots__ = ()

    _copy_refusal = "an Operation stays in its process, and is not copied; pass on what its result() gives"

    if not TYPE_CHECKING:  # a type checker finds such a mistake itself

        def __getattr__(self, name: str) -> object:
            for each in type(self).__mro__:
                if name in each.__dict__:  # it has raised an error of its own, and does so again
                    return each.__dict__[name].__get__(self, type(self))
            raise AttributeError(f"an Operation has no {name!r}, only its value may: call result() first, or await it")

    _core: Runtime
    _kind: str
    _path: Path | None
    nbytes: int

    def done(self) -> bool:
        """Tell whether the transfer has ended, well or not."""
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end, and return the value.

        Args:
            timeout: seconds to wait; None or ``math.inf``: until the end, which the operation's own deadline bounds.

        Raises:
            ValueError, TypeError: it is in flight, and ``timeout`` is negative, NaN or no number.
            DeadlineExceeded: ``timeout`` has passed, and the operation is still in flight; or the operation's own
                deadline has, and it is over.
            PeerLost, AccessDenied, Closed, ...: the operation failed.
            concurrent.futures.CancelledError: it was cancelled.
        """
        raise NotImplementedError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the error; None if the operation ended well.

        Raises:
            ValueError, TypeError: as for ``result``.
            DeadlineExceeded: ``timeout`` has passed, and the operation is still in flight.
            concurrent.futures.CancelledError: it was cancelled.
        """
        raise NotImplementedError

    def cancel(self) -> bool:
        """End the operation now; return False if it had ended before.

        Some bytes may have been moved, and others may still move: ``memory_in_use`` says whether, and ``flush()`` waits
        until none does. The buffers stay pinned until then.
        """
        raise NotImplementedError

    @property
    def memory_in_use(self) -> bool:
        """Tell whether bytes may still move to or from the memory of this operation, whether it has ended or not.

        An operation that was cancelled, or ran out of time, may be over before a device, a NIC or the peer is done with
        its memory. While this is True, use the memory for nothing else; ``flush()`` waits for it.
        """
        return False

    def __await__(self) -> Generator[Any, None, T]:
        raise NotImplementedError

    def _poll(self) -> bool:
        """Tell what ``done`` tells, on behalf of a wait that has still to hand the outcome over."""
        return self.done()

    # concurrent.futures.wait and asyncio.wait look for these. AttributeError, so that hasattr() goes on to be right.
    @property
    def _condition(self) -> NoReturn:
        raise AttributeError(_NO_FUTURE)

    @property
    def add_done_callback(self) -> NoReturn:
        """Raise AttributeError: an Operation is no future."""
        raise AttributeError(_NO_FUTURE)

    def wait_on(self, stream: Stream) -> None:
        """Make a stream of a GPU wait for the end of this operation, without waiting here.

        Work that is queued on the stream from now on runs after the end. If the operation fails, is cancelled or passes
        its deadline, the stream goes on too: this Operation then has the error, and the data is undefined.

        On a first use, of a peer or of its memory, the call waits until the path is known. While a stream waits for
        something that no GPU does, such as a notification or a staged transfer, driver calls that wait for all streams,
        such as one that pins memory, wait for it too.

        Args:
            stream: a torch, CuPy or cuda-core stream, or the driver's number of one.

        Raises:
            TypeError: not a stream.
            ValueError: the Context has no GPU that the stream could be on.
            Unsupported: the stream is being captured into a graph.
            Closed: the Context is closed.
        """
        from zerohop.core.runtime.streams import place_of

        self._core.check_open()
        place = place_of(self._core, stream)
        try:
            self._hold(*place)
        except NativeError as error:
            self._core.check_open()
            raise from_native(*error.args, operation="wait_on") from None

    def _hold(self, device: int, number: int) -> None:
        """Make a stream wait for the end; do nothing if the operation has ended."""

    def explain(self) -> Explanation:
        """Return path and time; as text: ``shm (mapped) host→host direct, 64.0 MiB in 3.4 ms, 19.7 GB/s``."""
        from zerohop.core.runtime.explanation import of_no_path

        if self._path is None:
            return of_no_path(self._kind, self._progress())
        return self._path.explanation._replace(kind=self._kind, outcome=self._progress())

    def _progress(self) -> str:
        raise NotImplementedError

    def _join(self, timeout: float | None) -> None:
        """Wait for the end, well or not; raise DeadlineExceeded if the timeout passes first."""

    def _spin(self) -> bool:
        """Poll for the end for as long as the Context's ``spin_us``; tell whether the operation has ended."""
        return True

    def _arm(self, queue: CompletionQueue, token: int) -> bool:  # noqa: ARG002
        """Ask for a token in a queue at the end; return False if the operation has ended."""
        return False

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        """Ask for no token any more."""

    def _name_errors(self, name: Callable[[ZerohopError], None]) -> None:
        """Have ``name`` add to each error of this operation what only a face knows, such as the rank."""

    def __repr__(self) -> str:
        return f"<Operation {self._kind} of {self.nbytes} bytes, {'done' if self.done() else 'in flight'}>"


def name_errors(operation: Operation[T], name: Callable[[ZerohopError], None]) -> Operation[T]:
    """Have ``name`` add to each error of an operation what only a face knows; return the operation.

    A face calls this before the user has the operation.
    """
    operation._name_errors(name)
    return operation


class Finished(Operation[T]):
    """Represents an operation that ended well within the call that started it."""

    __slots__ = ("_core", "_elapsed_ns", "_kind", "_path", "_value", "nbytes")

    def __init__(self, core: Runtime, kind: str, path: Path | None, nbytes: int, value: T, elapsed_ns: int) -> None:
        self._core = core
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
        if must_yield(self._core):
            yield
        return self._value

    def _progress(self) -> str:
        return transfer_text(self.nbytes, self._elapsed_ns)


class Failed(Finished[T]):
    """Represents an operation that failed within the call that started it."""

    __slots__ = ("_error", "_seen")

    def __init__(self, core: Runtime, kind: str, path: Path | None, nbytes: int, error: BaseException) -> None:
        self._core = core
        self._kind = kind
        self._path = path
        self.nbytes = nbytes
        self._error = error
        self._seen = False

    def result(self, timeout: float | None = None) -> T:  # noqa: ARG002
        self._seen = True
        try:
            raise self._error
        finally:
            del self  # which has the error, whose traceback has this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:  # noqa: ARG002
        self._seen = True
        return self._error

    def __await__(self) -> Generator[Any, None, T]:
        self._seen = True
        if must_yield(self._core):
            yield
        try:
            raise self._error
        finally:
            del self  # which has the error, whose traceback has this frame

    def _name_errors(self, name: Callable[[ZerohopError], None]) -> None:
        if isinstance(self._error, ZerohopError):
            name(self._error)

    def _progress(self) -> str:
        self._seen = True
        return f"failed: {self._error}"

    def __del__(self) -> None:
        if not getattr(self, "_seen", True):  # the constructor may have raised
            dropped.report(self._core, self._kind, self._error, asked=False, source=self)


def on_event_loop() -> bool:
    """Tell whether this thread runs an event loop, which must not be held up."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def must_yield(core: Runtime) -> bool:
    """Tell whether an await must give the loop's other tasks a turn first, even if nothing needs to be waited for.

    A coroutine whose operations all end at once would otherwise keep the loop to itself. Callers ask before they take
    a result, so that a task that is cancelled at this point loses nothing.

    Raises:
        RuntimeError: no event loop of asyncio runs on this thread.
    """
    now = time.monotonic_ns()
    if now < core.turn_ends_ns:
        return False
    if not on_event_loop():
        raise RuntimeError(NO_LOOP)
    core.turn_ends_ns = now + _TURN_NS
    return True


def begin_turn(core: Runtime) -> None:
    """Note that the loop has just resumed this task."""
    core.turn_ends_ns = time.monotonic_ns() + _TURN_NS


def complete_fields(error: ZerohopError, kind: str, path: Path | None) -> None:
    """Fill in the fields of an error that say where it happened, if they are empty."""
    error.operation = error.operation or kind
    if path is not None:
        error.peer = error.peer or path.peer
        error.provider = error.provider or path.explanation.provider
