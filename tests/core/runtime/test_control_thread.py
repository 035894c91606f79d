"""The thread with the event loop on which a Context's conversations go on."""

from __future__ import annotations

import asyncio
import threading

from support.patience import PATIENCE_S
from zerohop.core.runtime.control_thread import ControlThread


def test_what_nobody_waits_for_any_more_is_given_back() -> None:
    """A thread beside the loop has opened something, and whoever asked for it has left."""
    control = ControlThread()
    opened, go_on, discarded = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        opened.set()
        assert go_on.wait(PATIENCE_S)
        return "descriptors"

    def discard(value: str) -> None:
        assert value == "descriptors"
        discarded.set()

    async def ask_and_leave() -> None:
        asking = asyncio.ensure_future(control.run_in_thread(work, discard=discard))
        while not opened.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])

    try:
        control.run(ask_and_leave, timeout=10)
        go_on.set()
        assert discarded.wait(PATIENCE_S)
    finally:
        control.stop(10)
