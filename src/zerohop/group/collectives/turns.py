"""Keeps the collectives of a group in the order of their calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from zerohop.errors import Closed, ZerohopError, copy_of

if TYPE_CHECKING:
    import asyncio


class Turns:
    """Gives each collective a number, and lets one after the other begin. Methods are for any thread unless said so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._passed: set[int] = set()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}
        self._failure: ZerohopError | None = None
        self._failed = 0

    def take(self) -> int:
        """Return the number of a collective that is called now."""
        with self._lock:
            number = self._calls
            self._calls += 1
            return number

    def has_come(self, number: int) -> bool:
        """Tell whether all earlier ones have ended."""
        with self._lock:
            return self._turn == number

    async def wait_for(self, number: int) -> None:
        """Wait until all earlier ones have ended. On the control thread."""
        import asyncio

        loop = asyncio.get_running_loop()
        with self._lock:
            if self._turn == number:
                return
            future = loop.create_future()
            self._waiting[number] = loop, future
        try:
            await future
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def leave(self, number: int) -> None:
        """Let the next one begin, once all before this one have left as well. Only the first call does something."""
        woken: tuple[Any, Any] | None = None
        with self._lock:
            if number >= self._turn:
                self._passed.add(number)
            while self._turn in self._passed:
                self._passed.remove(self._turn)
                self._turn += 1
            woken = self._waiting.get(self._turn)
        if woken is not None:
            loop, future = woken
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # the Context is closed
                pass

    def fail(self, number: int, error: ZerohopError) -> None:
        """Let no collective begin that is later than this one: the ranks may be out of step."""
        with self._lock:
            if self._failure is None or number < self._failed:
                self._failure, self._failed = copy_of(error), number

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task alive until it has ended. On the control thread."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check(self, number: int) -> None:
        """Raise an error if an earlier collective has failed.

        Raises:
            ZerohopError: one has.
            Closed: one has, because the group was closed.
        """
        if self._failure is None or self._failed >= number:
            return
        if isinstance(self._failure, Closed):
            raise copy_of(self._failure)
        raise ZerohopError(
            f"a collective of this group has failed: {self._failure.reason}",
            fix="make a subgroup of the ranks that are left, and use that",
        )


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
