"""Declares Endings, which collects Operations and tells which of them have ended."""

from __future__ import annotations

import os
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from zerohop._native import CompletionQueue, NativeError, Tally
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.errors import Closed, from_native

if TYPE_CHECKING:
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.runtime.runtime import Runtime

K = TypeVar("K")
# A wait returns to Python this often, so that Ctrl-C is heard, and that the Context is closed.
_SLICE_NS: Final = 200_000_000
_WAKE: Final = (1 << 64) - 1  # the token of no operation


class Endings(Generic[K]):
    """Holds Operations of one Context, and gives each back once, with a key, when it has ended. Thread-safe.

    It takes no lock: a destructor that the garbage collector runs in the middle of a call may call it as well.
    """

    def __init__(self, core: Runtime) -> None:
        """Make an empty collection.

        Raises:
            LimitReached: there is no descriptor left to wait with.
            Closed: the Context is closed.
        """
        self._core = core
        self._tokens = count()
        self._armed: dict[int, tuple[K, Operation[Any]]] = {}
        self._closed = False
        core.check_process()
        try:
            self._queue = CompletionQueue(core.engine)
        except NativeError as error:
            raise from_native(*error.args, operation="wait") from None

    def __len__(self) -> int:
        return len(self._armed)

    def check_open(self) -> None:
        """Raise Closed if this is closed, or its Context."""
        self._core.check_process()
        if self._closed:
            raise Closed("this object is closed", fix="make another one", operation="wait")
        self._core.check_open()

    def add(self, operation: Operation[Any], key: K) -> None:
        """Add an operation, which may have ended already."""
        token = next(self._tokens)
        self._armed[token] = key, operation
        if operation.done() or not operation._arm(self._queue, token):
            self._queue.push(token)

    def poll(self) -> tuple[list[tuple[K, Operation[Any]]], bool]:
        """Return those that have ended, which are not held any more, and whether ``wake`` or a tally has called."""
        self._core.check_process()  # the queue has a descriptor that is the parent's, too
        tokens = self._queue.drain()
        return self._taken(tokens), _WAKE in tokens

    def wait(self, deadline_ns: int) -> tuple[list[tuple[K, Operation[Any]]], bool]:
        """Wait for some, and return what ``poll`` does; none if the time is up, or after ``wake``.

        Args:
            deadline_ns: on the monotonic clock; 0: none.

        Raises:
            Closed: this is closed, or its Context, and none has ended.
        """
        spin_ns = self._core.spin_ns
        while True:
            now = time.monotonic_ns()
            late = 0 < deadline_ns <= now
            until = min(deadline_ns, now + _SLICE_NS) if deadline_ns else now + _SLICE_NS
            tokens = self._queue.wait(until, spin_ns)
            found = self._taken(tokens)
            if not found:
                self.check_open()
            # Whether it is late is looked at last: a caller that was held up still gets what has ended.
            woken = _WAKE in tokens
            if found or late or woken:
                return found, woken
            spin_ns = 0

    def tally(self) -> Tally:
        """Return a new counter of messages, which has a wait return when it has counted as many as were wanted."""
        return Tally(self._queue, _WAKE)

    def wake(self) -> None:
        """Have a wait return now, with nothing if nothing has ended."""
        self._queue.push(_WAKE)

    async def wait_on_loop(self, changed: Any, timeout: float | None) -> None:
        """Wait on the running event loop until some have ended, or an asyncio.Event is set; ``timeout``: seconds."""
        import asyncio

        loop = asyncio.get_running_loop()
        # A loop has one reader for each descriptor, and several tasks may wait.
        descriptor = os.dup(self._queue.fd)
        loop.add_reader(descriptor, changed.set)
        try:
            await wait_with_timeout(changed.wait(), timeout)
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Forget all of them; they go on. Waits end with Closed."""
        self._core.check_process()
        self._closed = True
        self._armed.clear()
        self.wake()

    def _taken(self, tokens: list[int]) -> list[tuple[K, Operation[Any]]]:
        found = []
        for token in tokens:
            # An operation may give two tokens: one of its end, and one of another reason to look at it.
            each = self._armed.pop(token, None)
            if each is None:
                continue
            if each[1].done():
                found.append(each)
            else:
                self.add(each[1], each[0])
        return found
