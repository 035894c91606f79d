"""Waits for futures with a time limit, as thousands of operations do at once on the control thread."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

# Seconds of a wait from which on it shares a timer with others that end within the same tick.
_LONG_S: Final = 1.0
_TICK_S: Final = 0.05
# Waits that end at a tick, by event loop and number of the tick.
_ticks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[asyncio.Future[None]]]]
_ticks = weakref.WeakKeyDictionary()


async def ended_or_late(future: asyncio.Future[Any], limit: float | None) -> None:
    """Wait for a future, ``limit`` seconds at most, at a small part of the cost of ``asyncio.wait``."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def over(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(over)
    forget = _call_at_limit(loop, limit, waiter) if limit is not None else None
    try:
        await waiter
    finally:
        if forget is not None:
            forget()
        if not future.done():
            future.remove_done_callback(over)


def _call_at_limit(loop: asyncio.AbstractEventLoop, limit: float, waiter: asyncio.Future[None]) -> Callable[[], object]:
    """End a wait after ``limit`` seconds; return a function that takes that back.

    Waits whose long limits end within the same ``_TICK_S`` share a timer, and the longer ones of them end that much
    early: thousands of operations wait at once, and a timer of its own for each is the dearest part of that.
    """
    if limit < _LONG_S:
        return loop.call_later(limit, _end_all, [waiter]).cancel
    ticks = _ticks.setdefault(loop, {})
    tick = int((loop.time() + limit) / _TICK_S)
    if tick not in ticks:
        ticks[tick] = set()
        loop.call_at(tick * _TICK_S, lambda: _end_all(ticks.pop(tick)))
    ticks[tick].add(waiter)
    return lambda: ticks[tick].discard(waiter) if tick in ticks else None


def _end_all(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
