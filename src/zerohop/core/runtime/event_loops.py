"""Connects the engine to event loops by one native completion queue per (Context, loop).

The queue's event descriptor becomes readable when an armed operation ends; the loop then wakes the tasks that wait for
it. Any loop with ``add_reader`` works, asyncio's own and uvloop among them. Several Contexts may share a loop, and
several loops a Context.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import weakref
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import CompletionQueue, LoopBell, NativeError
from zerohop.core.base import closed_engine
from zerohop.core.base.frameworks import NO_LOOP
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from zerohop._native import Engine

    # Arms an event: a token goes into the queue when it happens. False if it has happened already.
    Arm = Callable[[CompletionQueue, int], bool]
    Disarm = Callable[[CompletionQueue, int], object]


_DRAIN: Final = methodcaller("drain")


class LoopQueue:
    """Holds the completion queue of one loop and one engine. Its methods are for the loop's own thread.

    Only the loop keeps the queue alive, by the reader that the queue adds. A loop that is closed and dropped therefore
    takes its queue along, even if tasks were waiting.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = CompletionQueue(engine)
        self._bell = LoopBell(self._queue)
        self._loop = weakref.ref(loop)
        self._waiting: dict[int, Callable[[], None]] = {}
        # Tokens of events that have happened, whose callbacks have still to be called.
        self._happened: collections.deque[int] = collections.deque()
        self._tokens = 0
        self.closed = False
        # A loop has one way to report its end: it closes the asynchronous generators that were begun on it.
        end = None
        if not getattr(loop, "_asyncgens_shutdown_called", False):
            end = _until_the_end(self)
            _step(end.__anext__())
        # The reader keeps `end` alive, which `_drain` does not use.
        loop.add_reader(self._bell.fd, self._drain, end)

    def arm(self, arm: Arm, callback: Callable[[], None]) -> int:
        """Arm an event, and call back once when it happens. Returns a token; 0 if it has happened already."""
        token = self._tokens = self._tokens + 1
        self._waiting[token] = callback
        if arm(self._queue, token):
            self._bell.listen()
            return token
        del self._waiting[token]
        return 0

    def disarm(self, disarm: Disarm, token: int) -> None:
        """Disarm an event. Needed after a callback, too: a wait may have armed a timer beside the event."""
        self._waiting.pop(token, None)
        disarm(self._queue, token)

    async def wait(self, arm: Arm, disarm: Disarm) -> None:
        """Arm an event and wait for it."""
        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        token = self.arm(arm, wake)
        if token:
            try:
                await future
            finally:
                self.disarm(disarm, token)

    def close(self) -> None:
        """Wake all waiting tasks and leave the loop. Any thread may call this after the engine was closed."""
        loop = self._loop()
        if loop is not None and loop.is_running():
            try:
                loop.call_soon_threadsafe(self.leave)
            except RuntimeError:
                # A RecursionError is one, too, and then the loop's own thread is not in here.
                if not loop.is_closed():
                    raise
            else:
                return
        self.leave()

    def leave(self) -> None:
        """Do what ``close`` does, on the loop's thread, or while the loop does not run.

        If an exception ends it anywhere, the next call does the rest.
        """
        loop = self._loop()
        if loop is not None and loop.is_closed():
            # The tasks that waited on it never run again.
            loop = None
        for token, callback in self._waiting.copy().items():
            if loop is not None:
                # A future that an exception leaves in the middle of its end never wakes its task, so the loop ends it.
                loop.call_soon_threadsafe(callback)
            self._waiting.pop(token, None)
        fd = self._bell.fd
        if loop is not None and fd >= 0:
            # The reader goes first: a closed descriptor's number may go to another file, which the loop would watch.
            loop.remove_reader(fd)
        self._bell.close()
        self.closed = True

    def _drain(self, _: object) -> None:
        try:
            # One call of C, so that nothing that a signal's handler raises comes between the two queues.
            self._happened.extend(chain.from_iterable(map(_DRAIN, (self._bell,))))
            self._call_back()
        except BaseException:
            loop = self._loop()
            if self._happened and loop is not None:
                loop.call_soon(self._call_back)
            raise

    def _call_back(self) -> None:
        some = bool(self._happened)
        while self._happened:
            token = self._happened[0]
            callback = self._waiting.get(token)
            if callback is not None:
                callback()
                self._waiting.pop(token, None)
            # Last: an exception in the middle leaves the token, and a callback may be called twice.
            self._happened.popleft()
        # Without a token, only a piece of a message has come: the progress thread takes the rest.
        if some and self._waiting:
            self._bell.listen()


class Loops:
    """Holds the LoopQueue of each event loop that has waited for an operation of one Context."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopQueue]]
        self._queues = weakref.WeakKeyDictionary()
        self._closed = False

    def running(self) -> LoopQueue:
        """Return the queue of the running loop, made on first use.

        Raises:
            RuntimeError: no loop is running on this thread.
            LimitReached: there is no descriptor left for a new queue.
            Closed: the Context is closed.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            raise RuntimeError(NO_LOOP)
        reference = self._queues.get(loop)
        queue = None if reference is None else reference()
        if queue is None or queue.closed:
            with self._lock:
                try:
                    if self._closed:
                        closed_engine.refuse()
                    self._sweep()
                    queue = LoopQueue(self._engine, loop)
                except NativeError as error:
                    raise from_native(*error.args) from None
                self._queues[loop] = weakref.ref(queue)
        return queue

    def close(self) -> None:
        """Close all queues, as LoopQueue.close says."""
        with self._lock:
            self._closed = True
            queues = [reference() for reference in self._queues.values()]
        for queue in queues:
            if queue is not None:
                queue.close()
        # Last, so that a close that was interrupted finds them again.
        self._queues.clear()
        self._engine = closed_engine.ENGINE

    def _sweep(self) -> None:
        """Close the queues of loops that were closed without closing their asynchronous generators."""
        for loop, reference in self._queues.copy().items():
            queue = reference()
            if loop.is_closed() and queue is not None:
                queue.close()


async def _until_the_end(queue: LoopQueue) -> AsyncGenerator[None, None]:
    """Make the queue leave its loop when the loop closes its asynchronous generators."""
    reference = weakref.ref(queue)
    del queue
    try:
        yield
    finally:
        found = reference()
        if found is not None:
            found.leave()


def _step(awaitable: Awaitable[Any]) -> None:
    """Run a coroutine to its end; it must not wait."""
    try:
        awaitable.__await__().send(None)
    except (StopIteration, StopAsyncIteration):
        pass
