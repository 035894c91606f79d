"""Converts seconds, which users give, into the nanoseconds in which the engine counts."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop.shown import shown

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable, Iterator

_T = TypeVar("_T")
_NS: Final = 1_000_000_000
# About thirty years. Clocks, locks and the engine count nanoseconds in 63 bits, and none of them may overflow.
_LONGEST_S: Final = 10.0**9
# Seconds after which a wait for a peer looks again. A process that stood still counts them once, however long it stood.
STEP_S: Final = 0.25


def seconds_of(timeout: float) -> float:
    """Check a timeout, and cap it at thirty years, so that no clock or lock overflows.

    Raises:
        ValueError: negative or NaN.
        TypeError: not a number.
    """
    if not hasattr(type(timeout), "__float__"):  # of its type: `float` itself has the attribute, and is no number
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    try:
        # NaN must be refused, too, and `timeout < 0` is false for NaN.
        if timeout >= 0:
            return float(timeout) if timeout < _LONGEST_S else _LONGEST_S
    except ArithmeticError:  # a Decimal that is NaN cannot be compared
        pass
    except (TypeError, ValueError, RuntimeError):  # NumPy and torch, each in its words, of what is not one number
        raise TypeError(f"timeout must be a number of seconds, such as 1.5, not {type(timeout).__name__}") from None
    raise ValueError(f"timeout must not be negative, as {shown(timeout)} is")


def nanoseconds_of(timeout: float) -> int:
    """Convert a timeout to nanoseconds, 1 at least; ``math.inf`` gives 0, which means none.

    Raises:
        ValueError, TypeError: as for ``seconds_of``.
    """
    seconds = seconds_of(timeout)
    return 0 if timeout == math.inf else max(1, int(seconds * _NS))


def deadline_after(timeout: float) -> int:
    """Return the monotonic time, in nanoseconds, ``timeout`` seconds from now; 0, which means none, for ``math.inf``.

    Raises:
        ValueError, TypeError: as for ``seconds_of``.
    """
    nanoseconds = nanoseconds_of(timeout)
    return time.monotonic_ns() + nanoseconds if nanoseconds else 0


async def wait_with_timeout(work: Awaitable[_T], seconds: float | None) -> _T:
    """Await work for ``seconds`` at most, or without limit for None; return or raise what it returns or raises.

    Unlike ``asyncio.wait_for`` before Python 3.12 it does not lose a cancellation that comes while the work ends.

    Raises:
        TimeoutError: the time has passed; the work was cancelled, and has ended.
    """
    return await _wait(work, [seconds])


async def wait_while_running(work: Awaitable[_T], seconds: float) -> _T:
    """Do the same as ``wait_with_timeout``, but count only time in which this process runs.

    A process that was stopped, or a machine that was paused, hears nothing meanwhile, and its peers may have stood
    still with it. Such a time counts as STEP_S seconds at most. This is for limits that a peer must keep, and not for
    deadlines of users, which count every second.

    Raises:
        TimeoutError: the time has passed; the work was cancelled, and has ended.
    """
    return await _wait(work, _steps(seconds))


def _steps(seconds: float) -> Iterator[float]:
    while seconds > 0:
        yield min(seconds, STEP_S)
        seconds -= STEP_S


async def _wait(work: Awaitable[_T], times: Iterable[float | None]) -> _T:
    """Await work for these times, one after the other."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        for seconds in times:
            ended, _ = await asyncio.wait([task], timeout=seconds)
            if ended:
                break
    except asyncio.CancelledError:
        await _given_up(task)
        raise
    if not task.done():
        await _given_up(task)
        raise TimeoutError
    return task.result()


async def _given_up(task: asyncio.Future[Any]) -> None:
    import asyncio

    task.cancel()
    if not task.done():
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asyncio would warn of an exception that nobody fetched
