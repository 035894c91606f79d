"""Declares objects that are told when operations end: Counter, CompletionList and Synchronizer."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from zerohop.config.checks import as_int, check_int
from zerohop.errors import DeadlineExceeded
from zerohop.group.completion import Completion, Ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zerohop.group.messaging import Messaging


class Counter(Completion):
    """Counts operations that have ended, well or not."""

    def __init__(self, group: Messaging) -> None:
        super().__init__(group)
        self._value = 0
        self._failures: list[Ended] = []
        # Counts short active messages as they come, without a call of Python.
        self.tally = self._tally = self._endings.tally()

    @property
    def value(self) -> int:
        """Return how many have ended by now."""
        self.progress()
        self._endings.check_open()
        return self._value + self._tally.count

    @property
    def failures(self) -> tuple[Ended, ...]:
        """Return those that have failed by now."""
        with self._changed:
            self.progress()
            return tuple(self._failures)

    def _reached(self, wanted: int) -> int | None:
        """Return how many have ended, if they are enough; the lock is held."""
        value = self._value + self._tally.count
        if value < wanted:
            self._tally.want(wanted - self._value)
            return None
        return value

    def wait(self, value: int, timeout: float | None = None) -> int:
        """Wait until ``value`` operations have ended; return how many have. ``failures`` has those that failed.

        Raises:
            DeadlineExceeded: the time is up.
        """
        wanted = as_int("value", value)
        return self._until(lambda: self._reached(wanted), timeout)

    async def until(self, value: int, timeout: float | None = None) -> int:
        """Do ``wait`` on the running event loop."""
        wanted = as_int("value", value)
        return await self._until_on_loop(lambda: self._reached(wanted), timeout)

    def _note(self, ended: Ended) -> None:
        self._value += 1
        if ended.error is not None:
            self._failures.append(ended)


class CompletionList(Completion):
    """Keeps the operations that have ended, in the order in which this was noticed."""

    def __init__(self, group: Messaging) -> None:
        super().__init__(group)
        self._ended: collections.deque[Ended] = collections.deque()

    def __len__(self) -> int:
        self.progress()
        return len(self._ended)

    def __bool__(self) -> bool:
        return True

    def poll(self) -> Ended | None:
        """Take the oldest; None if none has ended. An error is in its ``error``, and is not raised.

        Raises:
            Closed: none is left, and this object or its Context is closed.
        """
        with self._changed:
            self.progress()
            ended = self._taken()
        if ended is None:
            self._endings.check_open()
        return ended

    def pop(self, timeout: float | None = None) -> Ended:
        """Wait for one, and take it, as ``poll`` does.

        Raises:
            DeadlineExceeded: the time is up.
        """
        return self._until(self._taken, timeout)

    async def next(self, timeout: float | None = None) -> Ended:
        """Do ``pop`` on the running event loop."""
        return await self._until_on_loop(self._taken, timeout)

    async def __aiter__(self) -> AsyncIterator[Ended]:
        while True:
            yield await self.next()

    def _taken(self) -> Ended | None:
        return self._ended.popleft() if self._ended else None

    def _note(self, ended: Ended) -> None:
        self._ended.append(ended)


class Synchronizer(CompletionList):
    """Waits for a number of operations together, and can be used again."""

    def __init__(self, group: Messaging, threshold: int = 1) -> None:
        """Make one for ``threshold`` operations at a time."""
        super().__init__(group)
        self.threshold = check_int("threshold", as_int("threshold", threshold), 1, 1 << 30)

    def test(self, timeout: float = 0) -> bool:
        """Tell whether the operations have ended, or end within ``timeout`` seconds."""
        try:
            return self._until(lambda: len(self._ended) >= self.threshold or None, timeout)
        except DeadlineExceeded:
            return False

    def wait(self, timeout: float | None = None) -> list[Ended]:
        """Wait for ``threshold`` operations, and return them; the next call waits for as many others.

        Raises:
            DeadlineExceeded: the time is up.
            PeerLost, ...: the error of the first of them that failed; all have ended.
        """
        return _checked(self._until(self._all, timeout))

    async def until(self, timeout: float | None = None) -> list[Ended]:
        """Do ``wait`` on the running event loop."""
        return _checked(await self._until_on_loop(self._all, timeout))

    def _all(self) -> list[Ended] | None:
        if len(self._ended) < self.threshold:
            return None
        return [self._ended.popleft() for _ in range(self.threshold)]


def _checked(ended: list[Ended]) -> list[Ended]:
    for each in ended:
        if each.error is not None:
            raise each.error
    return ended
