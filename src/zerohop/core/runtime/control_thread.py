"""The control thread: one private event loop per Context, on which everything that talks about transfers happens.

Bytes never pass through it. It connects, agrees on lanes, maps, revokes and notices what dies; user code never runs on
it, so that nothing a user does can hold it up.
"""

from __future__ import annotations

import asyncio
import ctypes
import selectors
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop.core.base.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

THREAD_NAME: Final = "zerohop-control"
_ONCE: Final = 256
_ENDING_S: Final = 1.0


class ControlThread:
    """A daemon thread with an event loop of asyncio's own kind, whatever the application's policy is."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = _new_loop()
        # Every socket of the control plane, so that a forked child can let go of its copies.
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: set[tuple[str, str]] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    def call(self, callback: Callable[..., object], *args: Any) -> bool:
        """Run it on the loop, soon. From any thread, destructors included; nothing happens after stop(): False then."""
        if not self._stopped:
            try:
                self.loop.call_soon_threadsafe(callback, *args)
            except RuntimeError:  # closed in between
                pass
            else:
                return True
        return False

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run a coroutine function on the loop, from any thread."""
        self.call(self.start, work, *args)

    def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> asyncio.Task[None]:
        """The same, on the loop itself."""
        task = self.loop.create_task(work(*args))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def wait(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any, timeout: float) -> bool:
        """Run it, from another thread, and wait for its end; False when that takes longer."""
        if self._stopped:
            return False
        done = threading.Event()

        async def tracked() -> None:
            try:
                await work(*args)
            finally:
                done.set()

        self.spawn(tracked)
        return done.wait(timeout)

    def run(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any, timeout: float) -> None:
        """Run it, from another thread; raises what it raises, and TimeoutError when it takes longer."""
        asyncio.run_coroutine_threadsafe(work(*args), self.loop).result(timeout)

    async def run_in_thread(self, call: Callable[..., T], *args: Any, discard: Callable[[T], None] | None = None) -> T:
        """On the loop: what ``call(*args)`` returns or raises, on a thread of its own, as it may take long.

        Not on the loop's executor, for which the interpreter would wait at exit. Whoever waits may leave; what nobody
        waits for any more is given to ``discard``.
        """
        answer: asyncio.Future[T] = self.loop.create_future()

        def drop(value: T | None, error: Exception | None) -> None:
            if error is None and discard is not None:
                discard(value)  # type: ignore[arg-type]

        def settle(value: T | None, error: Exception | None) -> None:
            if answer.done():
                drop(value, error)
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value, failure = None, None
            try:
                value = call(*args)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                failure = error
            if not self.call(settle, value, failure):
                drop(value, failure)

        threading.Thread(target=work, name="zerohop-aside", daemon=True).start()
        return await answer

    def warn_once(self, key: str, topic: str, text: str, *args: object) -> None:
        """Log a warning, once per key and topic, so that nobody outside can fill a log."""
        if (key, topic) not in self._said and len(self._said) < _ONCE:
            self._said.add((key, topic))
            # As text: whoever keeps log records would keep an error's traceback, and with it half the Context.
            logger.warning(text, *map(str, args))

    def stop(self, timeout: float) -> bool:
        """Cancel what runs, end the loop and the thread; False when that took longer than ``timeout`` seconds."""
        if not self._stopped:
            # A turn later, so that whatever was begun before gets as far as it goes without waiting: a coroutine that
            # is cancelled before it has begun does nothing at all, and leaves open what it was to close.
            self.call(self.loop.call_soon, self._cancel_all)
            self._stopped = True
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """In a forked child, where the thread is not: close the child's copies, touch nothing that is shared.

        The loop is neither closed nor freed: both would reach into the epoll instance that the parent still uses.
        """
        self._stopped = True
        for sock in list(self.sockets):
            sock.close()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.loop))

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.start(self._finish, tasks)

    async def _finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Stop the loop once the cancelled tasks have ended."""
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_S)
        self.loop.stop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("zerohop's control thread failed in a way that it should not", exc_info=error)


def _new_loop() -> asyncio.AbstractEventLoop:
    """OSError when there are not enough descriptors for one."""
    selector = selectors.DefaultSelector()
    try:
        # What the loop will ask for: one whose constructor fails half way keeps its selector, and complains.
        for sock in socket.socketpair():
            sock.close()
        return asyncio.SelectorEventLoop(selector)
    except BaseException:
        selector.close()
        raise


async def resolve(host: str, port: int) -> list[tuple[Any, ...]]:
    """getaddrinfo, for stream sockets; a name that needs asking is asked for on a thread of its own.

    Not on the loop's executor: the interpreter would wait at exit for a name server that does not answer.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def settle(found: list[tuple[Any, ...]] | None, error: OSError | None) -> None:
        if not answer.done():
            if error is not None:
                answer.set_exception(error)
            elif found is not None:
                answer.set_result(found)

    def ask() -> None:
        found, error = None, None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as failure:
            error = failure
        try:
            loop.call_soon_threadsafe(settle, found, error)
        except RuntimeError:  # the Context was closed meanwhile
            pass

    threading.Thread(target=ask, name="zerohop-resolve", daemon=True).start()
    return await answer
