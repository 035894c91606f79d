"""Declares the objects that are told when operations end: Counter, Synchronizer, CompletionList and Handler.

Operations are native, and nothing of Python runs when one ends: an object learns of ends when somebody asks it, or
waits for it. So it costs no thread, and no handler runs where the user did not ask for it.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from zerohop.config.checks import as_int, check_int
from zerohop.core.face import deadline_after, endings_of
from zerohop.errors import Closed, DeadlineExceeded, ZerohopError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor

    from zerohop.core.face import Operation
    from zerohop.group.messaging import Messaging

T = TypeVar("T")
_SLICE_S = 0.2  # in which a thread that waits for the next end looks whether all is over


class Ended(NamedTuple):
    """Describes an operation that has ended.

    Attributes:
        kind: ``"send"``, ``"recv"``, ``"put"``, ``"get"``; ``"am"`` for an active message, on either side.
        rank: the other rank: the receiver of what this rank has posted, the source of what has come. -1: not known.
        tag: the tag.
        nbytes: bytes moved.
        data: the memory of the operation; of an active message that has come: a bytearray of its own, or what the pool
            or ``allocate`` gave. None for the end of a put or get of another rank.
        context: what the caller has passed as ``context=``.
        error: None if it ended well.
    """

    kind: str
    rank: int
    tag: int
    nbytes: int
    data: Any = None
    context: Any = None
    error: ZerohopError | None = None


class Completion:
    """Learns of the ends of operations. Thread-safe. One object may be given to many operations of one Context."""

    def __init__(self, group: Messaging) -> None:
        """Make an object for operations of a group, or of other groups of the same Context."""
        self._endings = endings_of(group.context)
        self._lock = threading.RLock()
        self._waiting = 0

    def watch(self, operation: Operation[Any], told: Callable[[Operation[Any]], Ended | None]) -> None:
        """Have an operation tell this object of its end; ``told`` describes it, or returns None for nothing to tell."""
        self._endings.add(operation, told)

    def close(self) -> None:
        """Hear of no more ends. Operations go on."""
        self._endings.close()

    def _note(self, ended: Ended) -> None:
        """Take an end; the lock is held."""
        raise NotImplementedError

    def _process(self, found: list[tuple[Callable[[Operation[Any]], Ended | None], Operation[Any]]]) -> None:
        for told, operation in found:
            ended = told(operation)
            if ended is not None:
                with self._lock:
                    self._note(ended)
        if found and self._waiting > 1:
            self._endings.wake()

    def progress(self) -> None:
        """Notice what has ended by now. Active messages that need memory get it."""
        self._process(self._endings.poll())

    def _until(self, ready: Callable[[], T | None], timeout: float | None) -> T:
        """Wait until ``ready``, which is called under the lock, returns something."""
        deadline_ns = 0 if timeout is None else deadline_after(timeout)
        with self._lock:
            self._waiting += 1
        try:
            self.progress()
            while True:
                with self._lock:
                    got = ready()
                if got is not None:
                    return got
                if 0 < deadline_ns <= time.monotonic_ns():
                    raise _too_late(timeout)
                self._process(self._endings.wait(deadline_ns))
        finally:
            with self._lock:
                self._waiting -= 1

    async def _until_on_loop(self, ready: Callable[[], T | None], timeout: float | None) -> T:
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
        try:
            self.progress()
            while True:
                with self._lock:
                    got = ready()
                if got is not None:
                    return got
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise _too_late(timeout)
                self._process(await self._endings.wait_on_loop(left))
        finally:
            with self._lock:
                self._waiting -= 1


class Counter(Completion):
    """Counts operations that have ended, well or not."""

    def __init__(self, group: Messaging) -> None:
        super().__init__(group)
        self._value = 0
        self._failures: list[Ended] = []

    @property
    def value(self) -> int:
        """Return how many have ended by now."""
        self.progress()
        return self._value

    @property
    def failures(self) -> tuple[Ended, ...]:
        """Return those that have failed by now."""
        self.progress()
        with self._lock:
            return tuple(self._failures)

    def wait(self, value: int, timeout: float | None = None) -> int:
        """Wait until ``value`` operations have ended; return how many have. ``failures`` has those that failed.

        Raises:
            DeadlineExceeded: the time is up.
        """
        wanted = as_int("value", value)
        return self._until(lambda: self._value if self._value >= wanted else None, timeout)

    async def until(self, value: int, timeout: float | None = None) -> int:
        """Do ``wait`` on the running event loop."""
        wanted = as_int("value", value)
        return await self._until_on_loop(lambda: self._value if self._value >= wanted else None, timeout)

    def _note(self, ended: Ended) -> None:
        self._value += 1
        if ended.error is not None:
            self._failures.append(ended)


class CompletionList(Completion):
    """Keeps the operations that have ended, in the order in which this was noticed."""

    def __init__(self, group: Messaging) -> None:
        super().__init__(group)
        self._ended: collections.deque[Ended] = collections.deque()

    def __len__(self) -> int:
        self.progress()
        return len(self._ended)

    def poll(self) -> Ended | None:
        """Take the oldest; None if none has ended. An error is in its ``error``, and is not raised."""
        self.progress()
        with self._lock:
            return self._taken()

    def pop(self, timeout: float | None = None) -> Ended:
        """Wait for one, and take it, as ``poll`` does.

        Raises:
            DeadlineExceeded: the time is up.
        """
        return self._until(self._taken, timeout)

    async def next(self, timeout: float | None = None) -> Ended:
        """Do ``pop`` on the running event loop."""
        return await self._until_on_loop(self._taken, timeout)

    async def __aiter__(self) -> AsyncIterator[Ended]:
        while True:
            yield await self.next()

    def _taken(self) -> Ended | None:
        return self._ended.popleft() if self._ended else None

    def _note(self, ended: Ended) -> None:
        self._ended.append(ended)


class Synchronizer(CompletionList):
    """Waits for a number of operations together, and can be used again."""

    def __init__(self, group: Messaging, threshold: int = 1) -> None:
        """Make one for ``threshold`` operations at a time."""
        super().__init__(group)
        self.threshold = check_int("threshold", as_int("threshold", threshold), 1, 1 << 30)

    def test(self) -> bool:
        """Tell whether the operations have ended."""
        return len(self) >= self.threshold

    def wait(self, timeout: float | None = None) -> list[Ended]:
        """Wait for ``threshold`` operations, and return them; the next call waits for as many others.

        Raises:
            DeadlineExceeded: the time is up.
            PeerLost, ...: the error of the first of them that failed; all have ended.
        """
        return _checked(self._until(self._all, timeout))

    def look(self, timeout: float) -> None:
        """Wait until one more operation has ended, ``timeout`` seconds at most."""
        self._process(self._endings.wait(deadline_after(timeout)))

    async def until(self, timeout: float | None = None) -> list[Ended]:
        """Do ``wait`` on the running event loop."""
        return _checked(await self._until_on_loop(self._all, timeout))

    def _all(self) -> list[Ended] | None:
        if len(self._ended) < self.threshold:
            return None
        return [self._ended.popleft() for _ in range(self.threshold)]


class Handler(CompletionList):
    """Calls a function for each operation that has ended, where the user chose."""

    def __init__(
        self,
        group: Messaging,
        function: Callable[[Ended], object],
        *,
        executor: Executor | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Call ``function`` in an executor, or on an event loop; without either, in the thread that calls ``run``.

        An exception of the function goes to the executor's future, to the loop's exception handler, or to the caller of
        ``run``.

        Raises:
            ValueError: both an executor and a loop.
        """
        if executor is not None and loop is not None:
            raise ValueError("a Handler runs in an executor or on a loop; pass one of them")
        super().__init__(group)
        self._function = function
        self._closed = False
        self._thread: threading.Thread | None = None
        if executor is not None or loop is not None:
            call: Callable[[Ended], object]
            if executor is not None:
                chosen = executor

                def call(ended: Ended) -> object:
                    return chosen.submit(function, ended)

            else:
                assert loop is not None
                there = loop

                def call(ended: Ended) -> object:
                    return there.call_soon_threadsafe(function, ended)

            self._thread = threading.Thread(target=self._forward, args=(call,), name="zerohop handler", daemon=True)
            self._thread.start()

    def run(self, timeout: float | None = 0) -> int:
        """Call the function for all that have ended by now; return for how many.

        Args:
            timeout: seconds to wait for the first; None: until there is one.
        """
        calls = 0
        ended = self.poll()
        if ended is None and timeout != 0:
            try:
                ended = self.pop(timeout)
            except DeadlineExceeded:
                return 0
        while ended is not None:
            self._function(ended)
            calls += 1
            ended = self.poll()
        return calls

    def close(self) -> None:
        """Call the function no more. Operations go on."""
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        super().close()

    def _forward(self, call: Callable[[Ended], object]) -> None:
        while not self._closed:
            try:
                call(self.pop(_SLICE_S))
            except DeadlineExceeded:
                pass
            except (Closed, RuntimeError):  # of the Context; of an executor or a loop that takes nothing any more
                return


def _checked(ended: list[Ended]) -> list[Ended]:
    for each in ended:
        if each.error is not None:
            raise each.error
    return ended


def _too_late(timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(f"not ended after {timeout} s", fix="wait again", operation="wait")
