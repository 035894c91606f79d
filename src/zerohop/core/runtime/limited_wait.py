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
# Calls that are due at a tick, by event loop and number of the tick.
_ticks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, set[Callable[[], object]]]]
_ticks = weakref.WeakKeyDictionary()


async def ended_or_late(future: asyncio.Future[Any], limit: float | None) -> None:
    """Wait for a future, ``limit`` seconds at most, at a small part of the cost of ``asyncio.wait``."""
    import asyncio

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def over(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(over)
    forget = call_at_limit(loop, limit, over) if limit is not None else None
    try:
        await waiter
    finally:
        if forget is not None:
            forget()
        if not future.done():
            future.remove_done_callback(over)


def call_at_limit(loop: asyncio.AbstractEventLoop, limit: float, late: Callable[[], object]) -> Callable[[], object]:
    """Call ``late`` after ``limit`` seconds; return a function that takes that back.

    Long limits that end within the same ``_TICK_S`` share a timer, and the longer ones of them end that much early:
    thousands of operations wait at once, and a timer of its own for each is the dearest part of that.
    """
    if limit < _LONG_S:
        return loop.call_later(limit, late).cancel
    ticks = _ticks.setdefault(loop, {})
    tick = int((loop.time() + limit) / _TICK_S)
    if tick not in ticks:
        ticks[tick] = set()
        loop.call_at(tick * _TICK_S, lambda: _call_all(ticks.pop(tick)))
    ticks[tick].add(late)
    return lambda: ticks[tick].discard(late) if tick in ticks else None


def _call_all(calls: Iterable[Callable[[], object]]) -> None:
    for call in calls:
        call()
