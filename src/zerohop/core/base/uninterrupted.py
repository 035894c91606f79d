"""Runs a call to its end whatever a signal handler raises meanwhile, as Python's own does for Ctrl-C.

Python calls signal handlers on the main thread alone, and what they raise comes up between any two lines there. Code
that opens one thing after the other cannot undo them all from any line, so it runs on a thread of its own.
"""

from __future__ import annotations

import _thread
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from zerohop.core.base.flag import Flag
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# Seconds for which an interrupted caller waits until all is undone.
_UNDOING_S: Final = 1.0
# Python's text for a thread that cannot be started; the error has no class of its own.
_NO_ROOM: Final = "can't start new thread"


def uninterrupted(call: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return or raise what ``call`` returns or raises.

    If a signal handler raises meanwhile, this raises the same, after a second at most, and ``undo`` gets the value of
    ``call`` as soon as that has ended.

    Raises:
        Unsupported: the interpreter is ending.
    """
    if sys.is_finalizing():
        raise Unsupported("the interpreter is ending, and no thread can be started any more", operation="open")
    if threading.current_thread() is not threading.main_thread():
        return call()
    work = _Work(call, undo)
    try:
        if not _run_on_thread(work):
            work.run()  # which says better what is missing
        return work.take()
    except BaseException:
        work.abandon()
        raise


def _run_on_thread(work: _Work[T]) -> bool:
    """Run the work on a thread of its own, and wait for that; return False if the thread could not do it.

    A thread that gets no memory for its first frame ends without a word. Whether it ended well or not, it then drops
    its argument, and that releases the lock by C code alone.
    """
    gone = threading.Lock()
    gone.acquire()
    argument = _Argument()
    # It releases the lock, whatever its arguments.
    watch = weakref.ref(argument, cast("Callable[[object], None]", gone.__exit__))
    try:
        # An exception in the middle of threading.Thread.start() may undo half of it.
        _thread.start_new_thread(work.run, (argument,))
    except RuntimeError as error:
        if str(error) != _NO_ROOM:
            raise
        return False
    del argument
    gone.acquire()
    del watch
    return work.ended.is_set()


class _Argument:
    """Is dropped when its thread ends."""


class _Work(Generic[T]):
    """Holds the call and its outcome, which either the caller takes or ``undo`` gets."""

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._call = call
        self._undo = undo
        self.ended = Flag()
        self._lock = threading.Lock()
        self._abandoned = False
        self._values: list[T] = []
        self._error: BaseException | None = None

    def run(self, argument: object = None) -> None:
        del argument  # which the traceback of an error would keep
        try:
            value = self._call()
            with self._lock:
                self._values.append(value)
                abandoned = self._abandoned
            if abandoned:
                self._undo_all()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            self.ended.set()

    def take(self) -> T:
        """Return the value, or raise the error of the call."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                # The traceback knows this frame, and so would keep the error alive.
                del error
        return self._values[0]

    def abandon(self) -> None:
        """Undo the call, now or when it has ended; wait for that a short time."""
        with self._lock:
            self._abandoned = True
        self._undo_all()
        # With a limit, because a thread that was interrupted in its start may never run.
        self.ended.wait(_UNDOING_S)

    def _undo_all(self) -> None:
        while True:
            with self._lock:
                if not self._values:
                    return
                value = self._values.pop()
            self._undo(value)
