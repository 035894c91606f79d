"""Calls that end by RecursionError at whatever depth: the next call, or the finalizer, goes on from there."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S, patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext

# Closing a Context takes fewer frames than this.
_DEPTHS = 60


def _at_each_depth(call: Callable[[], Callable[[], object]]) -> Iterator[bool]:
    """Make calls with room for 1 frame, for 2, …; yield whether each ended by RecursionError."""
    for room in range(1, _DEPTHS):
        was_cut = False
        try:
            _call_with_room(room, call())
        except RecursionError:
            was_cut = True
        yield was_cut


def _call_with_room(room: int, work: Callable[[], object]) -> None:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    _go_down(sys.getrecursionlimit() - depth - room, work)


def _go_down(frames: int, work: Callable[[], object]) -> None:
    if frames > 0:
        _go_down(frames - 1, work)
    else:
        work()


@pytest.mark.timeout(patience(60))
@pytest.mark.parametrize("ends_it", ["close", "finalizer"])
def test_closing(ends_it: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread and no descriptor of the Context stays, and a task that waits on an event loop hears of it."""
    # This drops a RecursionError in a destructor, where nobody can catch it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before, cut = holdings(), []
    loop = asyncio.new_event_loop()

    async def wait_for(operation: zh.Operation[zh.Notification]) -> None:
        await operation

    def closing() -> Callable[[], None]:
        held.append(Options(sim_devices=0).open())
        waiting.append(loop.create_task(wait_for(held[0].notification())))
        loop.run_until_complete(asyncio.sleep(0))
        return held[0].close

    held: list[zh.Context] = []
    waiting: list[asyncio.Task[None]] = []
    for was_cut in _at_each_depth(closing):
        cut.append(was_cut)
        if ends_it == "close":
            held[0].close()
            assert held[0]._core.gone
        thread = held[0]._core.control._thread
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # where close() did not begin
            held.clear()
        with pytest.raises(zh.Closed):
            loop.run_until_complete(asyncio.wait_for(waiting.pop(), PATIENCE_S))
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"it still runs: close() had room for {len(cut)} frames"
    loop.close()
    assert {True, False} == set(cut)
    expect_given_back(before, holdings, "this process")


def test_what_the_control_thread_is_asked(open_context: OpenContext) -> None:
    """It is woken for what comes after."""
    control = open_context(Options())._core.control
    cut = []
    for was_cut in _at_each_depth(lambda: lambda: control.call(lambda: None)):
        cut.append(was_cut)
        done = threading.Event()
        assert control.call(done.set)
        assert done.wait(PATIENCE_S), "nobody has woken it"
    assert {True, False} == set(cut)
