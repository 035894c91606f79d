"""The bridge between the engine and event loops: one native completion queue per (Context, loop).

Its event descriptor becomes readable when an armed operation ends; the loop then wakes whoever waits for it. Any loop
with ``add_reader`` will do, asyncio's own and uvloop. Several Contexts may share a loop, and several loops a Context.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING

from . import closed
from ._native import CompletionQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._native import Engine

    # Asks for a token in a queue when something happens; False when it has happened already.
    Arm = Callable[[CompletionQueue, int], bool]


class LoopQueue:
    """What one loop waits for in one engine. Its methods are for the loop's own thread."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = CompletionQueue(engine)
        self._loop = weakref.ref(loop)
        self._waiting: dict[int, Callable[[], None]] = {}
        self._tokens = 0
        loop.add_reader(self._queue.fd, self._drain)

    def arm(self, arm: Arm, callback: Callable[[], None]) -> bool:
        """Call back once when it happens; False, and no call, when it has happened already."""
        token = self._tokens = self._tokens + 1
        self._waiting[token] = callback
        if arm(self._queue, token):
            return True
        del self._waiting[token]
        return False

    async def wait(self, arm: Arm) -> None:
        """Until it happens."""
        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        if self.arm(arm, wake):
            await future

    def close(self) -> None:
        """Wake everyone who waits, and leave the loop. From any thread, once the engine ends no more operations."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._queue.close()
        elif loop.is_running():
            try:
                loop.call_soon_threadsafe(self._leave)
            except RuntimeError:  # closed in between
                self._queue.close()
        else:
            self._leave()

    def _drain(self) -> None:
        for token in self._queue.drain():
            callback = self._waiting.pop(token, None)
            if callback is not None:
                callback()

    def _leave(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            # Before the descriptor is closed, or the loop would mistake the next one of that number for it.
            loop.remove_reader(self._queue.fd)
        self._queue.close()


class Loops:
    """The queues of all loops that have waited for something of one Context."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = weakref.WeakKeyDictionary()
        self._closed = False

    def running(self) -> LoopQueue:
        """The queue of the running loop, made on first use.

        Raises:
            RuntimeError: no loop is running on this thread.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            with self._lock:
                if self._closed:
                    closed.refuse()
                self._sweep()
                queue = self._queues[loop] = LoopQueue(self._engine, loop)
        return queue

    def close(self) -> None:
        """Close all; see LoopQueue.close."""
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
            self._queues.clear()
        for queue in queues:
            queue.close()
        self._engine = closed.ENGINE

    def _sweep(self) -> None:
        """Close the queues of loops that were closed; a loop tells nobody when it is."""
        for loop, queue in list(self._queues.items()):
            if loop.is_closed():
                del self._queues[loop]
                queue.close()
