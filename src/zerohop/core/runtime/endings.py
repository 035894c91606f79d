"""Declares Endings, which collects Operations and tells which of them have ended."""

from __future__ import annotations

import os
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from zerohop._native import CompletionQueue, NativeError
from zerohop.core.base.deadlines import wait_with_timeout
from zerohop.errors import from_native

if TYPE_CHECKING:
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.runtime.runtime import Runtime

K = TypeVar("K")
# A wait returns to Python this often, so that Ctrl-C is heard.
_CTRL_C_NS: Final = 200_000_000
_WAKE: Final = (1 << 64) - 1  # the token of no operation


class Endings(Generic[K]):
    """Holds Operations of one Context, and gives each back once, with a key, when it has ended. Thread-safe."""

    def __init__(self, core: Runtime) -> None:
        """Make an empty collection.

        Raises:
            LimitReached: there is no descriptor left to wait with.
            Closed: the Context is closed.
        """
        self._core = core
        self._lock = threading.Lock()
        self._tokens = count()
        self._armed: dict[int, tuple[K, Operation[Any]]] = {}
        core.check_process()
        try:
            self._queue = CompletionQueue(core.engine)
        except NativeError as error:
            raise from_native(*error.args, operation="wait") from None

    def __len__(self) -> int:
        return len(self._armed)

    def add(self, operation: Operation[Any], key: K) -> None:
        """Add an operation, which may have ended already."""
        token = next(self._tokens)
        with self._lock:
            self._armed[token] = key, operation
        if operation.done() or not operation._arm(self._queue, token):
            self._queue.push(token)

    def poll(self) -> list[tuple[K, Operation[Any]]]:
        """Return those that have ended, which are not held any more."""
        return self._taken(self._queue.drain())

    def wait(self, deadline_ns: int) -> list[tuple[K, Operation[Any]]]:
        """Wait for some, and return them as ``poll`` does; none if the time is up, or after ``wake``.

        Args:
            deadline_ns: on the monotonic clock; 0: none.
        """
        spin_ns = self._core.spin_ns
        while True:
            now = time.monotonic_ns()
            late = 0 < deadline_ns <= now
            until = min(deadline_ns, now + _CTRL_C_NS) if deadline_ns else now + _CTRL_C_NS
            tokens = self._queue.wait(until, spin_ns)
            found = self._taken(tokens)
            self._core.check_process()
            # Whether it is late is looked at last: a caller that was held up still gets what has ended.
            if found or late or _WAKE in tokens:
                return found
            spin_ns = 0

    def wake(self) -> None:
        """Have waits return now, with nothing if nothing has ended."""
        self._queue.push(_WAKE)

    async def wait_on_loop(self, timeout: float | None) -> list[tuple[K, Operation[Any]]]:
        """Do ``wait`` on the running event loop, which may also return nothing sooner; ``timeout``: seconds."""
        import asyncio

        found = self.poll()
        if found:
            return found
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        # A loop has one reader for each descriptor, and several tasks may wait.
        descriptor = os.dup(self._queue.fd)
        loop.add_reader(descriptor, readable.set)
        try:
            await wait_with_timeout(readable.wait(), timeout)
            found = self.poll()
        except TimeoutError:
            found = self.poll()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return found

    def close(self) -> None:
        """Forget all of them; they go on."""
        self._queue.close()
        self._armed.clear()

    def _taken(self, tokens: list[int]) -> list[tuple[K, Operation[Any]]]:
        with self._lock:
            # An operation may give two tokens: one of its end, and one of another reason to look at it.
            taken = [self._armed.pop(token, None) for token in tokens]
        found = []
        for each in taken:
            if each is None:
                continue
            if each[1].done():
                found.append(each)
            else:
                self.add(each[1], each[0])
        return found
