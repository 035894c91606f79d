"""Keeps the collectives of a group in the order of their calls."""

from __future__ import annotations

import math
import threading
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from zerohop.core.face import wait_with_timeout
from zerohop.errors import Closed, DeadlineExceeded, ZerohopError, copy_of

if TYPE_CHECKING:
    import asyncio


class Turns:
    """Gives each collective a number, and lets one after the other begin. Methods are for any thread unless said so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = count()
        self._taken = 0
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._passed: set[int] = set()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}
        self._failure: ZerohopError | None = None
        self._failed = 0

    def take(self, taken: list[int]) -> None:
        """Append the number of a collective that is called now."""
        with self._lock:
            # One step, which a signal's handler cannot divide: no number is lost.
            taken.extend(islice(self._calls, 1))
            self._taken = taken[-1] + 1

    def has_taken(self, number: int, bits: int) -> bool:
        """Tell whether a collective was called, by some low bits of its number."""
        behind = self._taken - 1 - number & bits
        return self._taken > 0 and behind <= bits // 2

    def has_come(self, number: int) -> bool:
        """Tell whether all earlier ones have ended."""
        with self._lock:
            return self._turn == number

    def may_begin(self, number: int) -> bool:
        """Tell whether all earlier ones have ended well."""
        with self._lock:
            return self._turn == number and self._failure is None

    async def wait_for(self, number: int, left_s: float = math.inf) -> None:
        """Wait until all earlier ones have ended, for ``left_s`` seconds at most. On the control thread.

        Raises:
            DeadlineExceeded: they have not.
        """
        try:
            await wait_with_timeout(self._come(number), None if left_s == math.inf else left_s)
        except TimeoutError:
            text = "an earlier collective of this group has not ended"
            raise DeadlineExceeded(text, fix="allow more time with timeout=") from None

    async def _come(self, number: int) -> None:
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

    def fail(self, number: int, error: ZerohopError, *, again: bool = False) -> None:
        """Let no collective begin that is later than this one: the ranks may be out of step.

        ``again``: this collective has failed before, and the error says more.
        """
        with self._lock:
            if self._failure is None or number < self._failed or (again and number == self._failed):
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
            ranks=self._failure.ranks,
        )


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
