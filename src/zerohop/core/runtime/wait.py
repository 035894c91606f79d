"""Waits for many Operations: for all of them, or for each as it ends."""

from __future__ import annotations

import select
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from zerohop._native import CompletionQueue, NativeError
from zerohop.core.base.deadlines import deadline_after, wait_with_timeout
from zerohop.core.runtime.operation import Operation, on_event_loop
from zerohop.errors import DeadlineExceeded, from_native

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Generator, Iterable, Iterator

    from zerohop.core.runtime.runtime import Runtime

T = TypeVar("T")
# A wait returns to Python this often, so that Ctrl-C is heard.
_CTRL_C_NS: Final = 200_000_000
_AWAIT: Final = "in a coroutine type `await zh.gather(operations)`"


class Results(list[T]):
    """Holds what ``wait_all`` returns. A caller who takes it for something that is still to be waited for is told."""

    __slots__ = ()

    def __await__(self) -> NoReturn:
        raise TypeError(f"wait_all() has waited, and has returned the values; {_AWAIT}")

    @property
    def result(self) -> NoReturn:
        """Raise AttributeError: the values are in the list."""
        raise AttributeError("wait_all(operations, timeout) has waited, and this list holds the values")


class Gathered(Generic[T]):
    """Waits for many Operations as one. Made by ``gather``; awaitable, or ``result(timeout)``."""

    __slots__ = ("_asked", "operations")

    def __init__(self, operations: Iterable[Operation[T]]) -> None:
        self.operations = _checked(operations)
        self._asked = not self.operations

    def done(self) -> bool:
        """Tell whether all have ended."""
        self._asked = True
        return all(operation.done() for operation in self.operations)

    def result(self, timeout: float | None = None) -> list[T]:
        """Wait until all have ended, and return their values in the order of the operations.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number; ``math.inf`` is no limit, as None is.
            DeadlineExceeded: ``timeout`` seconds have passed; the operations that have not ended are still in flight.
            ZerohopError: the first error in the order of the operations; all have ended.
        """
        self._asked = True
        try:
            return _values(self.operations, timeout)
        finally:
            del self  # whose operations have errors, whose tracebacks have this frame

    def cancel(self) -> bool:
        """Cancel the operations that are in flight; return False if there are none."""
        self._asked = True
        return any([operation.cancel() for operation in self.operations])  # noqa: C419 - all of them, not up to the first

    def __await__(self) -> Generator[Any, None, list[T]]:
        self._asked = True
        try:
            # From the first to the last, which are taken off the list's end.
            pending = [operation for operation in self.operations[::-1] if not operation._poll()]
            if pending:
                # Only one is polled for: a loop must not be held up once per operation.
                pending[-1]._spin()
            while pending:
                yield from ended(pending.pop()).__await__()
        except BaseException:
            self.cancel()
            raise
        from concurrent.futures import CancelledError

        try:
            return _values(self.operations, 0)
        except CancelledError:
            # A coroutine knows another class of this name, as Operation has it.
            import asyncio

            raise asyncio.CancelledError from None
        finally:
            del self, pending  # each has its error, whose traceback has this frame

    def __del__(self) -> None:
        if not getattr(self, "_asked", True):  # the constructor may have raised
            warnings.warn(
                f"gather() of {len(self.operations)} operations was not waited for; {_AWAIT}, "
                "elsewhere `zh.wait_all(operations)`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class AsCompleted(Generic[T]):
    """Yields Operations in the order in which they end. Made by ``as_completed``; for ``for`` and ``async for``."""

    __slots__ = ("_deadline", "_operations")

    def __init__(self, operations: Iterable[Operation[T]], timeout: float | None) -> None:
        self._operations = _checked(operations)
        self._deadline = 0 if timeout is None else deadline_after(timeout)

    def __iter__(self) -> Iterator[Operation[T]]:
        pending, ready = _split(self._operations)
        yield from ready
        queues: dict[Runtime, CompletionQueue] = {}
        try:
            armed: dict[int, Operation[T]] = {}
            for token, operation in enumerate(pending):
                core = operation._core
                if core not in queues:
                    queues[core] = _new_queue(core)
                if operation._arm(queues[core], token):
                    armed[token] = operation
                else:
                    yield operation
            while armed:
                for core, token in self._tokens(queues):
                    if token not in armed:
                        # A notification gives two tokens, one for its arrival and one for its deadline.
                        continue
                    operation = armed[token]
                    operation._disarm(queues[core], token)
                    # Another caller may have taken the notification; then this one waits on.
                    if operation.done() or not operation._arm(queues[core], token):
                        del armed[token]
                        yield operation
        finally:
            for queue in queues.values():
                queue.close()

    async def __aiter__(self) -> AsyncIterator[Operation[T]]:
        import asyncio

        pending, ready = _split(self._operations)
        for operation in ready:
            yield operation
        ended: asyncio.Queue[Operation[T]] = asyncio.Queue()
        watches = [_Watch(operation, ended) for operation in pending]
        try:
            for _ in pending:
                left = (self._deadline - time.monotonic_ns()) / 1e9 if self._deadline else None
                try:
                    yield await wait_with_timeout(ended.get(), left)
                except TimeoutError:
                    raise _too_late() from None
        finally:
            for watch in watches:
                watch.stop()

    def _tokens(self, queues: dict[Runtime, CompletionQueue]) -> list[tuple[Runtime, int]]:
        """Wait for tokens of ended operations; raise DeadlineExceeded if none has ended when the time is up."""
        spin_ns = max(core.spin_ns for core in queues)
        while True:
            now = time.monotonic_ns()
            late = 0 < self._deadline <= now
            until = min(self._deadline, now + _CTRL_C_NS) if self._deadline else now + _CTRL_C_NS
            if len(queues) == 1:
                [(core, queue)] = queues.items()
                found = [(core, token) for token in queue.wait(until, spin_ns)]
            else:
                # One thread cannot poll for several engines, so their own threads do.
                poll = select.poll()
                for queue in queues.values():
                    poll.register(queue.fd, select.POLLIN)
                poll.poll(max(0, until - now) / 1e6)
                found = [(core, token) for core, queue in queues.items() for token in queue.drain()]
            for core in queues:
                core.check_process()
            if found:
                return found
            # This is checked last: a caller that was held up past the deadline still gets the operations that ended.
            if late:
                raise _too_late()
            spin_ns = 0


def wait_all(operations: Iterable[Operation[T]], timeout: float | None = None) -> list[T]:
    """Wait until all have ended, and return their values in the order of ``operations``.

    If some fail, the wait still lasts until all have ended, and then raises the first error in that order. The call
    blocks; in a coroutine type ``await zh.gather(operations)``.

    Args:
        operations: the Operations.
        timeout: seconds to wait for all of them; None or ``math.inf``: until the end.

    Raises:
        TypeError: not Operations; or this thread runs an event loop, which the call would hold up, because some have
            not ended.
        ValueError, TypeError: ``timeout`` is negative, NaN or no number.
        DeadlineExceeded: ``timeout`` seconds have passed; the operations that have not ended are still in flight.
        ZerohopError: the first error in the order of the operations; all have ended.
    """
    found = _checked(operations)
    if on_event_loop() and not all(operation.done() for operation in found):
        raise TypeError(f"wait_all() would hold up the event loop that runs on this thread; {_AWAIT}")
    try:
        return Results(_values(found, timeout))
    finally:
        del operations, found  # each has its error, whose traceback has this frame


def gather(operations: Iterable[Operation[T]]) -> Gathered[T]:
    """Wait for all as one: ``await zh.gather(operations)``, or ``zh.gather(operations).result(timeout)``.

    The values come in the order of ``operations``. If some fail, the wait still lasts until all have ended, and then
    raises the first error in that order. Cancelling the wait cancels all of them. The call itself does not wait; what
    it returns gives a ResourceWarning when it is dropped and nobody has waited.

    Raises:
        TypeError: not Operations.
    """
    return Gathered(operations)


def as_completed(operations: Iterable[Operation[T]], timeout: float | None = None) -> AsCompleted[T]:
    """Yield each Operation as it ends, well or not, with ``for`` or ``async for``.

    Raises:
        ValueError, TypeError: ``timeout`` is negative, NaN or no number; ``math.inf`` is no limit, as None is.
        TypeError: not Operations.
        DeadlineExceeded: raised in the loop if some have not ended ``timeout`` seconds after this call.
        LimitReached: raised in the loop if there is no descriptor left to wait with; the operations go on.
    """
    return AsCompleted(operations, timeout)


def _new_queue(core: Runtime) -> CompletionQueue:
    core.check_process()
    try:
        return CompletionQueue(core.engine)
    except NativeError as error:
        raise from_native(*error.args, operation="as_completed") from None


def _values(operations: list[Operation[T]], timeout: float | None) -> list[T]:
    deadline = 0 if timeout is None else deadline_after(timeout)
    values: list[T] = []
    operation: Operation[T] | None = None
    failed: Operation[T] | None = None
    for operation in operations:
        left = max(0, deadline - time.monotonic_ns()) / 1e9 if deadline else None
        try:
            values.append(operation.result(left))
        except Exception as error:
            # If the operation has not ended, the wait itself failed, and the others are not waited for.
            if not operation._poll() or not _is_outcome(operation, error):
                raise
            failed = failed or operation
    try:
        if failed is not None:
            failed.result(0)
            # The operation ended well just when the wait for it timed out.
            return [operation.result(0) for operation in operations]
        return values
    finally:
        # Each has its error, whose traceback has this frame.
        operation = failed = None
        del operations


def _is_outcome(operation: Operation[Any], error: Exception) -> bool:
    """Tell whether an error is how an operation ended, or that it ended a little late, and not a signal handler's."""
    from concurrent.futures import CancelledError

    return isinstance(error, (DeadlineExceeded, CancelledError)) or operation.exception(0) is error


def _checked(operations: Iterable[Operation[T]]) -> list[Operation[T]]:
    """Return the operations as a list; raise TypeError if they are no Operations, or a single one."""
    if not hasattr(operations, "__iter__"):
        raise TypeError(f"what is waited for are Operations, in a list or the like, not {type(operations).__name__}")
    found = list(operations)
    for each in found:
        if not isinstance(each, Operation):
            raise TypeError(f"what is waited for are Operations, not {type(each).__name__}")
    return found


def _split(operations: list[Operation[T]]) -> tuple[list[Operation[T]], list[Operation[T]]]:
    pending: list[Operation[T]] = []
    ready: list[Operation[T]] = []
    for operation in operations:
        (ready if operation.done() else pending).append(operation)
    return pending, ready


async def ended(operation: Operation[Any]) -> None:
    """Wait until an operation has ended, well or not."""
    while not operation._poll():
        await operation._core.loops.running().wait(operation._arm, operation._disarm)


class _Watch(Generic[T]):
    """Puts an Operation into an asyncio queue once it has ended."""

    __slots__ = ("_ended", "_loop", "_operation", "_token")

    def __init__(self, operation: Operation[T], ended: asyncio.Queue[Operation[T]]) -> None:
        self._operation = operation
        self._ended = ended
        self._loop = operation._core.loops.running()
        self._token = 0
        self._look()

    def _look(self) -> None:
        self.stop()
        operation = self._operation
        self._token = 0 if operation.done() else self._loop.arm(operation._arm, self._look)
        if not self._token:
            self._ended.put_nowait(operation)

    def stop(self) -> None:
        """Disarm the operation, because nobody reads the queue any more."""
        token, self._token = self._token, 0
        if token:
            self._loop.disarm(self._operation._disarm, token)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("some operations are still in flight", fix="wait again, or cancel() them")
