"""Runs the control thread: one private event loop per Context.

The control thread connects, agrees on lanes, maps memory, revokes handles and notices lost peers. No payload passes
through it, and no user code runs on it but the handlers of the program's logging, so that a user cannot hold it up.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from zerohop.core.base import threads
from zerohop.core.base.flag import Flag
from zerohop.core.base.log import WarnOnce, logger
from zerohop.core.runtime.control_loop import File, file_of, new_loop
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    import selectors
    import socket
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

THREAD_NAME: Final = "zerohop-control"
_ENDING_S: Final = 1.0
# Calls that run before the loop looks at its sockets again.
_CALLS_A_TURN: Final = 256
# Seconds until the loop runs again after an exception that broke it off.
_RESTART_PAUSE_S: Final = 0.01


class ControlThread:
    """Runs asyncio's own event loop on a daemon thread, whatever event loop policy the application has."""

    def __init__(self) -> None:
        self.loop, self._selector = new_loop()
        self._selector_file = file_of(self._selector.fileno())
        # All sockets of the control plane and their files are here, so that a forked child can close its copies.
        self._sockets: weakref.WeakKeyDictionary[socket.socket, File | None] = weakref.WeakKeyDictionary()
        for end in self.loop.ends:
            self.own(end)
        self._tasks: set[asyncio.Task[None]] = set()
        # Calls that the loop has still to run, and whether it was woken for them.
        self._calls: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self._woken = False
        self.warn_once = WarnOnce(self.loop.call_later)
        # Set once the system refuses a call without which the loop cannot be woken, or cannot wait.
        self.refused: Unsupported | None = None
        # Called when the loop may have lost a step of anything, for lack of memory.
        self.when_step_lost: Callable[[], None] = lambda: None
        self.loop.set_exception_handler(self._failed_callback)
        self._stopped = False
        # Whether all tasks were cancelled, after which the loop ends.
        self._ending = False
        self._broken = False
        self._thread = threads.Thread(self._run, name=THREAD_NAME)
        try:
            self._thread.begin("open")
        except BaseException:
            self.loop.close()
            raise

    def own(self, sock: socket.socket) -> None:
        """Note a socket of the control plane, for as long as it lives."""
        self._sockets[sock] = file_of(sock.fileno())

    def call(self, callback: Callable[..., object], *args: Any) -> bool:
        """Run a callback on the loop soon; return False after ``stop``, or if the system refuses to wake the loop.

        Any thread may call this, and so may destructors.
        """
        if self._stopped or self.refused is not None:
            return False
        return self._queue(callback, *args)

    def _queue(self, callback: Callable[..., object], *args: Any) -> bool:
        try:
            self._calls.append((callback, args))
            if self._woken:
                return True
            self._woken = True
            self.loop.call_soon_threadsafe(self._run_calls)
        except BaseException as error:
            # The next call wakes the loop, perhaps once more than it need.
            self._woken = False
            if isinstance(error, RuntimeError) and self.loop.is_closed():
                return False
            # It is a signal's handler's, or a RecursionError, which is a RuntimeError, too. The call may be queued: it
            # may keep alive what would otherwise make the next call.
            if not isinstance(error, Exception):
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self._run_calls)
            raise
        self.refused = self.refused or self.loop.refusal
        return self.refused is None

    def _run_calls(self) -> None:
        """Run what ``call`` has queued: one wake-up of the loop serves all calls that came before it ran."""
        self._woken = False
        for _ in range(_CALLS_A_TURN):
            try:
                callback, args = self._calls.popleft()
            except IndexError:
                return
            try:
                callback(*args)
            except Exception as error:  # noqa: BLE001 - the calls behind it must run
                self._report(error)
                self._make_up_for(error)
        self._woken = True
        self.loop.call_soon(self._run_calls)

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> bool:
        """Run a coroutine function on the loop, from any thread; return what ``call`` returns."""
        return self.call(self.start, work, *args)

    def start(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        *args: Any,
        failed: Callable[[BaseException], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run a coroutine function on the loop; called on the loop.

        An error that ends the task is logged. ``failed`` is called with it, and ends what may wait for the task; by
        default lack of memory ends the conversations with all peers.
        """
        task = self.loop.create_task(work(*args))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, failed or self._make_up_for))
        return task

    def wait(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any, timeout: float) -> bool:
        """Run a coroutine function on the loop and wait for its end from another thread.

        Returns False if that takes longer than ``timeout`` seconds.
        """
        if self._stopped:
            return False
        done = Flag()

        async def tracked() -> None:
            try:
                await work(*args)
            finally:
                done.set()

        return self.spawn(tracked) and done.wait(timeout)

    def run(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any, timeout: float) -> None:
        """Run a coroutine function on the loop from another thread, and raise what it raises.

        Raises:
            TimeoutError: it takes longer than ``timeout`` seconds.
            Unsupported: the system refuses to wake the loop.
        """
        future = asyncio.run_coroutine_threadsafe(work(*args), self.loop)
        if self.loop.refusal is not None:
            raise self.loop.refusal
        try:
            future.result(timeout)
        except concurrent.futures.TimeoutError:  # up to Python 3.10 this is another TimeoutError
            raise TimeoutError from None
        finally:
            del future  # it keeps the error, and that, by its traceback, this frame

    async def run_in_thread(self, call: Callable[..., T], *args: Any, discard: Callable[[T], None] | None = None) -> T:
        """Call a blocking function on a new thread; return or raise what it returns or raises. Awaited on the loop.

        The loop's executor does not serve here, because the interpreter would wait for it at exit. If the awaiting task
        was cancelled meanwhile, the result goes to ``discard``.
        """
        aside = _Aside(self, call, args, discard)
        answer = aside.answer
        threads.Thread(aside.run, name="zerohop-aside").begin()
        return await answer

    def stop(self, timeout: float) -> bool:
        """Cancel all tasks, end the loop and the thread; return False if that takes more than ``timeout`` seconds."""
        # First, so that a stop that a signal's handler cuts short here is one that the next stop goes on with.
        self._stopped = True
        runs = self.refused is None or self.loop.refusal is not None
        if runs and not (self._ending or self._broken or self.loop.is_closed()):
            # The tasks are cancelled one turn of the loop later, when all have begun: a coroutine that is cancelled
            # before it has begun runs no code, and leaves its sockets open.
            self._queue(self.loop.call_soon, self._cancel_all)
            if self.loop.refusal is not None:
                self.loop.wake_by_closing()
        # A thread that sleeps in an epoll whose descriptors are closed cannot be woken.
        if self._thread is not threading.current_thread() and not self._broken:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets; the child has no control thread.

        The loop is neither closed nor freed: both would change the epoll instance that the parent still uses.
        """
        self._stopped = True
        for sock in list(self._sockets):
            sock.close()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.loop))

    def descriptors_closed(self) -> bool:
        """Tell whether the program has closed descriptors of this thread, as os.closerange() does; if so, abandon it.

        Their numbers may be those of other files by now, which nothing here may close.
        """
        if self._stopped or self.refused is not None:
            return self._broken
        lost = [sock for sock, file in self._sockets.copy().items() if _is_lost(sock, file)]
        if not lost and not _is_lost(self._selector, self._selector_file):
            return False
        self._broken = self._stopped = True
        for sock in lost:
            sock.detach()
        # Neither the loop nor its tasks are freed, which would close the sockets by which it is woken.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        logger.warning(
            "descriptors of this process were closed beneath zerohop, as os.closerange() does: a Context can only be "
            "closed now, and its peers get no goodbye. Fix: close the Context before that, and open another one then"
        )
        return True

    def _run(self) -> None:
        try:
            while not self._turn_until_stopped():
                # There may be memory again soon, and until then the loop must not keep a core busy.
                time.sleep(_RESTART_PAUSE_S)
        finally:
            if not self._broken:
                self.loop.close()

    def _turn_until_stopped(self) -> bool:
        """Run the loop; return False if an exception broke it off, of which it has lost nothing but one callback.

        Without the call by which it waits, it can never go on.
        """
        try:
            self.loop.run_forever()
        except Unsupported as error:
            self.refused = error
        except Exception as error:  # noqa: BLE001 - of the loop itself, out of memory; peers and waiters need the loop
            if self.descriptors_closed():
                return True
            self._report(error)
            self._make_up_for(error)
            return False
        return True

    def _failed_callback(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report what a callback of the loop's own has raised; the loop may call it again at once, for ever."""
        error = context.get("exception")
        if isinstance(error, Unsupported):
            self.warn_once("", "refused", "%s", error)
        else:
            self._report(error if isinstance(error, BaseException) else RuntimeError(context["message"]))
        self._make_up_for(error)
        time.sleep(_RESTART_PAUSE_S)  # or a callback that fails again and again would keep a core busy

    def _make_up_for(self, error: object) -> None:
        """Let nothing wait for ever for a step that the loop has lost."""
        if isinstance(error, MemoryError) and not self._stopped:
            try:
                # The step may have been the run of what `call` has queued.
                self._woken = True
                self.loop.call_soon(self._run_calls)
                self.when_step_lost()
            except MemoryError:  # there is still none; it is called again with the next step that is lost
                pass

    def _report(self, error: BaseException) -> None:
        """Log an error that nothing handled, once for each place, because a peer may cause it again and again."""
        if self.descriptors_closed():
            return
        self.warn_once.bug(error, "zerohop's control thread failed in a way that it should not")

    def _cancel_all(self) -> None:
        if self._ending:
            return
        self._ending = True
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.start(self._finish, tasks)

    async def _finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Stop the loop once the cancelled tasks have ended."""
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_S)
        self.warn_once.finish()
        self.loop.stop()

    def _ended(self, failed: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            try:
                self._report(error)
            finally:  # there may be no memory to report it
                failed(error)


def _is_lost(owner: socket.socket | selectors.EpollSelector, file: File | None) -> bool:
    """Tell whether an open descriptor is of another file than it was, or was closed by somebody else."""
    fd = owner.fileno()
    # Another thread may close it just now, as it should, and the number be that of a new file.
    return fd >= 0 and file_of(fd) not in (None, file) and owner.fileno() == fd


class _Aside(Generic[T]):
    """Holds a call for a thread of its own, and its outcome until that is handed over.

    It keeps none of them longer, because its thread may end much later, and what it kept would live as long.
    """

    def __init__(
        self,
        control: ControlThread,
        call: Callable[..., T],
        args: tuple[Any, ...],
        discard: Callable[[T], None] | None,
    ) -> None:
        self._control = control
        self._call: Callable[[], T] | None = functools.partial(call, *args)
        self._discard = discard
        self.answer: asyncio.Future[T] = control.loop.create_future()
        self._values: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self._values.append(self._call())
        except Exception as error:  # noqa: BLE001 - it is raised by the await
            self._error = error
        self._call = None
        if not self._control.call(self._settle):
            self._drop()

    def _settle(self) -> None:
        answer = self.answer
        del self.answer
        if answer.done():
            self._drop()
        elif self._error is not None:
            answer.set_exception(self._error)
            self._error = None
        else:
            answer.set_result(self._values.pop())

    def _drop(self) -> None:
        self._error = None
        if self._values and self._discard is not None:
            self._discard(self._values.pop())
