"""Waits at a queue of the engine's: for the next notification, or the next peer that has connected."""

# ruff: noqa: D102 - Operation documents these methods

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from zerohop._native import NativeError
from zerohop._native import NotificationWait as NativeWait
from zerohop.core.base.deadlines import deadline_after
from zerohop.core.runtime import dropped
from zerohop.core.runtime.native_operation import CTRL_C_NS, cancelled_error
from zerohop.core.runtime.operation import Operation, begin_turn, must_yield
from zerohop.errors import DeadlineExceeded, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    from collections.abc import Generator

    from zerohop._native import CompletionQueue, Op
    from zerohop.core.lifecycle import Core

_T = TypeVar("_T")
# The deadline for await_notification to look once.
_DO_NOT_WAIT: Final = -1


class Queue(Protocol):
    """Names a queue of the engine's, and says how it stands.

    Attributes:
        number: the engine's number of it.
        closed: whether the queue is closed, so that another one may get its number.
    """

    number: int
    closed: bool

    @property
    def ended(self) -> ZerohopError | None:
        """Return why nothing can come any more; None while it can."""


class _StreamWait:
    """Ends the native operation that a stream waits for, when the QueueWait ends."""

    __slots__ = ("_waits",)

    def __init__(self, waits: Op) -> None:
        self._waits = waits

    def push(self, _token: int) -> None:
        self._waits.cancel()


class QueueWait(NativeWait, Operation[_T]):
    """Waits for the next entry of a queue that nobody else takes. One thread or task at a time may wait with it.

    It is made of the Context's core, the monotonic time in nanoseconds at which it ends or 0, and the Queue at which it
    waits; without one, that is the queue of the Context's own notifications.

    Attributes:
        _made: the class of tuples that a notification becomes; None: the entry is the Connection of its peer.
        _silence: what a wait says that has found no entry.
        _note: the entry, once one has come.
        _error: why none came.
        _cancelled: whether ``cancel`` has ended it.
        _armed: queues that get a token when this wait ends, and waits of streams.
        _timer: the native operation that ends at the deadline; None: it is not needed.
        _asked: whether somebody has waited for it, perhaps not to its end.
        _delivered: whether a caller was told of the entry; if not, the queue gets it back with the wait's end.
        _claim, _release: allow one waiter at a time: two would take two entries, and one of them would be lost.
    """

    __slots__ = ("__weakref__",)

    _made: ClassVar[type[tuple[Any, ...]] | None]
    _silence: ClassVar[str]
    _path = None
    nbytes = 0

    _core: Core
    _group: Queue | None
    _note: _T | None
    _error: BaseException | None
    _armed: list[tuple[CompletionQueue | _StreamWait, int]]
    _timer: Op | None
    _deadline_ns: int
    _number: int
    _cancelled: bool
    _asked: bool
    _delivered: bool

    if TYPE_CHECKING:  # native code has these methods, and calls _outcome unless an entry is here or comes at once

        def result(self, timeout: float | None = None) -> _T: ...
        def _cancel(self) -> bool: ...
        def _claim(self) -> bool: ...
        def _release(self) -> None: ...

    def done(self) -> bool:
        ended = self._poll()
        self._delivered = self._delivered or ended
        return ended

    def _poll(self) -> bool:
        self._asked = True
        if self._ended():
            return True
        if not self._claim():
            return False
        try:
            return self._take(_DO_NOT_WAIT, 0) or self._expired()
        finally:
            self._release()

    def _outcome(self, timeout: float | None = None) -> _T:
        self._join(timeout)
        if self._note is None:
            raise self._failure()
        self._delivered = True
        return self._note

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._join(timeout)
        if self._note is not None:
            self._delivered = True
            return None
        if self._cancelled:
            raise cancelled_error()
        return self._error

    def cancel(self) -> bool:
        self._asked = True
        if self._ended() or not self._cancel():
            return False
        self._wake_others()
        if not self._core.closed:
            self._core.engine.wake_waiters()  # one of them may be waiting with this
        return True

    def __await__(self) -> Generator[Any, None, _T]:
        self._asked = True
        if not self._ended():
            if not self._claim():
                raise _busy()
            try:
                if must_yield(self._core):
                    yield
                spin_ns = self._core.spin_ns
                if not self._take(_DO_NOT_WAIT, 0) and not self._take(time.monotonic_ns() + spin_ns, spin_ns):
                    yield from self._suspend().__await__()
                    begin_turn(self._core)
            except BaseException:
                self.cancel()
                raise
            finally:
                self._release()
        if self._note is None:
            if self._cancelled:
                import asyncio

                raise asyncio.CancelledError
            raise self._failure()
        self._delivered = True
        return self._note

    def _hold(self, device: int, number: int) -> None:
        self._asked = True
        if self._ended():
            return
        engine = self._core.engine
        waits = engine.new_op(self._deadline_ns)
        # The entry goes in before `_ended` is asked, so that no cancellation on another thread is missed.
        self._armed.append((_StreamWait(waits), 0))
        engine.hold_stream_for_notification(waits, device, number, self._number)
        if self._ended():
            waits.cancel()

    def _join(self, timeout: float | None) -> None:
        self._asked = True
        if self._ended():
            return
        if not self._claim():
            raise _busy()
        try:
            self._wait(timeout)
        finally:
            self._release()

    def _wait(self, timeout: float | None) -> None:
        now = time.monotonic_ns()
        spin_ns = self._core.spin_ns
        give_up = 0 if timeout is None else deadline_after(timeout)
        while True:
            until = now + CTRL_C_NS
            if give_up and give_up < until:
                until = give_up
            if self._deadline_ns and self._deadline_ns < until:
                until = self._deadline_ns
            if self._take(until, spin_ns) or self._expired():
                return
            now = time.monotonic_ns()
            if give_up and now >= give_up:
                raise DeadlineExceeded(f"{self._silence} within {timeout} s", operation=self._kind, fix="wait again")
            spin_ns = 0

    async def _suspend(self) -> None:
        """Wait until an entry has come or the deadline has passed."""
        queue = self._core.loops.running()
        while not self._take(_DO_NOT_WAIT, 0) and not self._expired():
            await queue.wait(self._arm, self._disarm)

    def _take(self, deadline_ns: int, spin_ns: int) -> bool:
        """Take an entry if one comes before the deadline; tell whether this wait has ended."""
        core = self._core
        if self._cancelled:
            return True
        core.check_process()
        try:
            # A signal's handler may raise when the call has returned; the entry is here by then.
            return core.engine.await_notification(self, deadline_ns, spin_ns)
        except NativeError as error:
            self._error = self._why_not(error)
            return True

    def _why_not(self, error: NativeError) -> ZerohopError:
        group, core = self._group, self._core
        if group is not None and group.ended is not None:
            return copy_of(group.ended)
        return core.closed_error() if core.closed else from_native(*error.args, operation=self._kind)

    def _expired(self) -> bool:
        if not self._deadline_ns or time.monotonic_ns() < self._deadline_ns:
            return False
        self._error = DeadlineExceeded(f"{self._silence} in time", operation=self._kind, fix="allow more with timeout=")
        return True

    def _wake_others(self) -> None:
        """Wake everything else that waits for this operation, which has ended."""
        self._timer = None
        for queue, token in self._armed.copy():
            queue.push(token)

    def _ended(self) -> bool:
        if self._note is not None or self._error is not None or self._cancelled:
            return True
        if self._core.forked:  # a thread of the parent may hold the guard, which nobody gives back here
            self._error = self._core.closed_error()
            return True
        return False

    def _failure(self) -> BaseException:
        return self._error if self._error is not None and not self._cancelled else cancelled_error()

    def _spin(self) -> bool:
        return self._poll()

    def _arm(self, queue: CompletionQueue, token: int) -> bool:
        self._asked = True
        engine = self._core.engine
        # The entry goes in before `_ended` is asked, so that no cancellation on another thread is missed.
        self._armed.append((queue, token))
        try:
            if not self._ended() and engine.arm_notification(queue, token, self._number):
                if not self._deadline_ns:
                    return True
                self._timer = self._timer or engine.new_op(self._deadline_ns)
                if self._timer.arm(queue, token):
                    return True
        except NativeError:  # the Context or the queue is being closed, which done() will report
            pass
        self._disarm(queue, token)
        return False

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        if (queue, token) in self._armed:
            self._armed.remove((queue, token))
        if self._timer is not None:
            self._timer.disarm(queue, token)
        if not self._core.closed:
            self._core.engine.disarm_notification(queue, token, self._number)

    def _progress(self) -> str:
        if self._note is not None:
            return "received"
        if self._cancelled:
            return "cancelled"
        return "waiting" if self._error is None else f"failed: {self._error}"

    def _dropped(self) -> None:
        """Report a wait that is being freed, and that nobody has waited with. Native code calls this."""
        dropped.report(self._core, self._kind, None, asked=False, source=self)


def _busy() -> RuntimeError:
    return RuntimeError("another thread or task is waiting with this Operation; make one each")
