"""Knows which operation a task of the control thread serves: how long it may wait, and what to say if that is too long.

The tasks that it begins serve the same operation.
"""

from __future__ import annotations

import time
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from zerohop.core.runtime.limited_wait import ended_or_late
from zerohop.errors import ZerohopError, copy_of, silent_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

# Seconds that a request waits for its answer if it serves no operation, and so has no deadline.
REPLY_S: Final = 10.0
_NS: Final = 1e9
# Deadline of the operation that a task of the control thread serves; 0: none. Unset in tasks that serve no operation.
_deadline_ns: ContextVar[int] = ContextVar("zerohop_deadline_ns")
# The operation that a task of the control thread serves. Weak, because tasks that outlive it copy this.
_served: ContextVar[weakref.ref[Served]] = ContextVar("zerohop_served")


class Served(Protocol):
    """Declares an operation that a task serves."""

    def say_when_late(self, silence: Callable[[], ZerohopError] | None) -> None:
        """Note how to make the error if the deadline passes from now on."""


class Peer(Protocol):
    """Names the peer that a task waits for."""

    peer: str
    # The error with which the peer was lost; None while the peer is not lost.
    lost: ZerohopError | None


def serve(operation: Served, deadline_ns: int) -> None:
    """Note that the running task serves an operation."""
    _deadline_ns.set(deadline_ns)
    _served.set(weakref.ref(operation))


def seconds_left(otherwise: float | None = None) -> float | None:
    """Return the seconds left to the operation that the running task serves; None if it has no deadline.

    A task that serves no operation gets ``otherwise``, or else the time that any request may take.
    """
    deadline_ns = _deadline_ns.get(None)
    if deadline_ns is None:
        return REPLY_S if otherwise is None else otherwise
    return max(0.0, (deadline_ns - time.monotonic_ns()) / _NS) if deadline_ns else None


def while_waiting(silence: Callable[[], ZerohopError] | None) -> None:
    """Note how to make the error for the operation that the running task serves, if its deadline passes from now on."""
    reference = _served.get(None)
    operation = None if reference is None else reference()
    if operation is not None:
        operation.say_when_late(silence)


async def wait_shared(future: asyncio.Future[Any], peer: Peer, limit: float | None) -> None:
    """Wait for a future, ``limit`` seconds at most, on the control thread. Several tasks may wait for the same future.

    Raises:
        DeadlineExceeded: the future is not done, because the peer does not answer; the work behind it goes on.
        ZerohopError: the future's error; or the loss of the Connection, if the future was cancelled for that.
    """
    # Also if it is done, so that its other callbacks have run by then.
    await ended_or_late(future, limit)
    if not future.done():
        raise silent_error(peer.peer, "the peer does not answer")
    if future.cancelled() and peer.lost is not None:
        raise copy_of(peer.lost)
    # Not by result(), which would leave this task's frames, and the operation, with an error that several tasks share.
    error = future.exception()
    if error is not None:
        raise copy_of(error) if isinstance(error, ZerohopError) else error
