"""Declares Flag, an event that the main thread may wait for."""

from __future__ import annotations

import threading


class Flag:
    """Is set once, and waited for by any thread.

    ``threading.Event`` does not serve on the main thread: it is Python code, and a signal's handler that raises in the
    middle of a wait can leave its lock held, so that whoever sets the event hangs. A lock is waited for in C alone.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let all go that wait, and that will; called once."""
        self._is_set = True
        self._lock.release()

    def is_set(self) -> bool:
        """Tell whether it was set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for so many seconds at most, None: without limit; return whether it is set."""
        if not self._is_set and self._lock.acquire(
            timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
        ):
            self._lock.release()  # for the next one that waits
        return self._is_set
