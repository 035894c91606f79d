"""Declares Completion, from which the objects that are told when operations end are derived.

Operations are native, and nothing of Python runs when one ends: an object learns of ends when somebody asks it, or
waits for it. So it costs no thread, and no handler runs where the user did not ask for it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from zerohop.core.face import deadline_after, endings_of
from zerohop.errors import DeadlineExceeded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from zerohop._native import Tally
    from zerohop.core.face import Context, Operation
    from zerohop.group.messaging import Messaging

    # Describes the end of an operation; None: nothing is to be told.
    Told = Callable[[Operation[Any]], "Ended | None"]

T = TypeVar("T")
# Seconds in which those who wait for another thread look whether all is over.
SLICE_S: Final = 0.2


class Attached(Protocol):
    """Declares what a completion object looks at beside operations: an Inbox."""

    def look(self) -> None:
        """Do what could not be done before."""

    def close(self) -> None:
        """Receive no more."""


class Ended(NamedTuple):
    """Describes an operation that has ended.

    Attributes:
        kind: ``"send"``, ``"recv"``, ``"put"``, ``"get"``; ``"am"`` for an active message, on either side.
        rank: the other rank: the receiver of what this rank has posted, the source of what has come. -1: not known.
        tag: the tag.
        nbytes: bytes moved.
        data: the memory of the operation; of an active message that has come: a bytearray of its own, or what the pool
            or ``allocate`` gave. None for the end of a put or get of another rank.
        context: what the caller has passed as ``context=``.
        header: of an active message that has come, what ``am(header=...)`` has sent beside it; else empty.
        error: None if it ended well; else that of the operation, or of the function that was to give memory.
    """

    kind: str
    rank: int
    tag: int
    nbytes: int
    data: Any = None
    context: Any = None
    error: Exception | None = None
    header: bytes = b""


class Completion:
    """Learns of the ends of operations. Thread-safe. One object may be given to many operations of one Context.

    Attributes:
        tally: counts active messages of which nothing else is to be known; None: all of them are told.

    A thread that looks at it takes the ends that are there, for all threads and tasks that wait. Of the threads that
    wait, one does so in native code, and the others wait for that one.
    """

    def __init__(self, group: Messaging) -> None:
        """Make an object for operations of a group, or of other groups of the same Context."""
        context = getattr(group, "context", None)
        if context is None:
            raise TypeError(f"group is a Group, not {type(group).__name__}")
        self.context = context
        self._endings = endings_of(group.context)
        # Reentrant: a function of the user's, such as ``allocate``, may look at the object.
        self._changed = threading.Condition(threading.RLock())
        self._found: collections.deque[tuple[Told, Operation[Any]]] = collections.deque()
        self._is_waited_for = False
        self._tasks: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self.tally: Tally | None = None
        # The inboxes are called at each look, and at the end.
        self._inboxes: list[Attached] = []

    def check(self, context: Context) -> None:
        """Raise ValueError if operations of a Context cannot be told to this object, Closed if it is closed."""
        if context is not self.context:
            raise ValueError("this completion object is of another Context; make one for this group")
        self._endings.check_open()

    def watch(self, operation: Operation[Any], told: Told) -> None:
        """Have an operation tell this object of its end; ``told`` describes it, or returns None for nothing to tell."""
        self._endings.add(operation, told)

    def attach(self, inbox: Attached) -> None:
        """Have an inbox looked at, and closed, with this object."""
        with self._changed:
            self._inboxes.append(inbox)

    def detach(self, inbox: Attached) -> None:
        """Do not look at an inbox any more."""
        with self._changed:
            self._inboxes = [each for each in self._inboxes if each is not inbox]

    def progress(self) -> None:
        """Notice what has ended by now. Active messages that need memory get it."""
        with self._changed:
            if not self._is_waited_for:  # else the thread that waits takes them, in their order
                self._process(*self._endings.poll())

    def close(self) -> None:
        """Hear of no more ends, and let nobody send to this object. Operations go on; waits end with Closed."""
        with self._changed:
            inboxes, self._inboxes = self._inboxes, []
        for inbox in inboxes:
            inbox.close()
        self._endings.close()
        self._tell_waiters()

    def note(self, ended: Ended) -> None:
        """Tell this object something."""
        with self._changed:
            self._note(ended)

    def _note(self, ended: Ended) -> None:
        """Take an end; the lock is held. Each kind of object that ends are told to has its own way."""
        raise TypeError(f"a {type(self).__name__} is told of no {ended.kind}")

    def _process(self, found: list[tuple[Told, Operation[Any]]], woken: bool) -> None:
        """Take ends, in their order; the lock is held. If an exception ends it, the next call does the rest.

        ``woken``: all that wait are to look again, because a tally may have what one of them wants.
        """
        self._found.extend(found)
        some = woken or bool(self._found)
        while self._found:
            told, operation = self._found.popleft()
            ended = told(operation)
            if ended is not None:
                self._note(ended)
        for inbox in self._inboxes:
            inbox.look()
        if some:
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for loop, event in list(self._tasks):
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)

    def _until(self, ready: Callable[[], T | None], timeout: float | None) -> T:
        """Wait until ``ready``, which is called under the lock, returns something."""
        deadline_ns = 0 if timeout is None else deadline_after(timeout)
        while True:
            with self._changed:
                self.progress()
                got = ready()
                if got is not None:
                    self._changed.notify_all()  # one of the others is to wait in native code now
                    return got
                self._endings.check_open()
                now = time.monotonic_ns()
                if 0 < deadline_ns <= now:
                    raise _too_late(timeout)
                if self._is_waited_for:
                    left_s = (deadline_ns - now) / 1e9 if deadline_ns else SLICE_S
                    self._changed.wait(min(left_s, SLICE_S))
                    continue
                self._is_waited_for = True
            found: list[tuple[Told, Operation[Any]]] = []
            woken = False
            try:
                found, woken = self._endings.wait(deadline_ns)
            finally:
                with self._changed:
                    self._is_waited_for = False
                    self._process(found, woken)
                    self._changed.notify_all()

    async def _until_on_loop(self, ready: Callable[[], T | None], timeout: float | None) -> T:
        """Do ``_until`` on the running event loop."""
        import asyncio

        deadline_ns = 0 if timeout is None else deadline_after(timeout)
        changed = asyncio.Event()
        task = asyncio.get_running_loop(), changed
        self._tasks.add(task)
        try:
            while True:
                changed.clear()
                with self._changed:
                    self.progress()
                    got = ready()
                if got is not None:
                    return got
                self._endings.check_open()
                left = (deadline_ns - time.monotonic_ns()) / 1e9 if deadline_ns else SLICE_S
                if left <= 0:
                    raise _too_late(timeout)
                await self._endings.wait_on_loop(changed, min(left, SLICE_S))
        finally:
            self._tasks.discard(task)


def _too_late(timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(f"not ended after {timeout} s", fix="wait again", operation="wait")
