"""Checks that a new Context waits for its own thread, which needs Python's lock, and says so if that is in vain.

The thread is held up before its first step, because a program that holds the lock for seconds would take seconds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core import lifecycle
from zerohop.core.runtime.control_thread import ControlThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.fixtures import OpenContext

# What closing has always given a thread to end in, and opening once gave it to begin in: too little on a busy machine.
_TOO_LITTLE_S = 1.0


@pytest.fixture
def go_on(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold up the threads of Contexts until this is set, at the end of the test at the latest, so that none is left."""
    event, run = threading.Event(), ControlThread._run

    def run_late(self: ControlThread) -> None:
        event.wait()
        run(self)

    monkeypatch.setattr(ControlThread, "_run", run_late)
    yield event
    event.set()


def test_its_time_is_long(open_context: OpenContext, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for long, because on a busy machine a thread may come late; the Context works all the same."""
    waits, wait = list[float](), ControlThread.run

    def wait_for_late(self: ControlThread, work: Callable[..., object], *args: object, timeout: float) -> None:
        waits.append(timeout)
        go_on.set()
        wait(self, work, *args, timeout=timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(ControlThread, "run", wait_for_late)
    context = open_context(Options(sim_devices=0))
    assert waits == [lifecycle._BEGINNING_S]
    assert waits[0] >= 30 * _TOO_LITTLE_S
    context.write(bytes(64), context.alloc(64).share("rw")).result(PATIENCE_S)


def test_it_never_comes(go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say what to do; once the thread has had its turn nothing is left, because nobody has the Context to close it."""
    monkeypatch.setattr(lifecycle, "_BEGINNING_S", 0.05)
    monkeypatch.setattr(lifecycle, "_EXIT_S", 0.05)
    with pytest.raises(zh.DeadlineExceeded, match="no turn") as caught:
        Options(sim_devices=0).open()
    assert caught.value.operation == "open"
    assert "before that work begins" in caught.value.fix
    go_on.set()
    monkeypatch.undo()
    Options(sim_devices=0).open().close()
