"""The event loops that every asynchronous test runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from support.patience import ANSWER_S

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(loop: str, main: Coroutine[Any, Any, T], limit: float = ANSWER_S) -> T:
    """Run it to the end on a loop of its own, which is closed afterwards. Raises TimeoutError past the limit."""
    event_loop = LOOPS[loop]()
    event_loop.set_debug(True)
    try:
        return event_loop.run_until_complete(asyncio.wait_for(main, limit))
    finally:
        left = asyncio.all_tasks(event_loop)
        for task in left:
            task.cancel()
        if left:
            event_loop.run_until_complete(asyncio.wait(left))
        event_loop.run_until_complete(event_loop.shutdown_asyncgens())
        event_loop.run_until_complete(event_loop.shutdown_default_executor())
        event_loop.close()
