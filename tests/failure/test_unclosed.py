"""A Context that is dropped and was not closed: its finalizer closes it, and warns."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext


def _dropped(drop: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop()
        gc.collect()
    assert all(each.category is ResourceWarning for each in caught)
    return [str(each.message) for each in caught]


def test_it_is_closed(no_leaks: None) -> None:
    """Descriptors, threads, sockets and memory go; the program does not wait for it."""
    before = holdings()
    held = [Options(name="forgotten").open()]
    core = weakref.ref(held[0]._core)
    [warned] = _dropped(held.clear)
    assert "forgotten" in warned
    assert "dropped and not closed" in warned
    expect_given_back(before, holdings, "this process")

    def freed() -> bool:
        gc.collect()
        return core() is None

    eventually(freed, "it is never freed")


def test_its_peers_hear_of_it(open_context: OpenContext) -> None:
    other = open_context(Options())
    held = [Options().open()]
    into, handle = np.zeros(8, np.uint8), other.alloc(8).share("rw")
    held[0].read(handle, into).result(PATIENCE_S)
    assert other.connections
    _dropped(held.clear)
    eventually(lambda: not other.connections, "it has not said goodbye")


def test_what_is_left_of_it_says_why(no_leaks: None) -> None:
    """Whoever keeps a Memory and not its Context is told what to do."""
    held = [Options().open()]
    memory = held[0].alloc(8)
    _dropped(held.clear)
    eventually(lambda: memory._core.closed, "it is not closed")
    with pytest.raises(zh.Closed, match="was dropped") as caught:
        memory.share()
    assert "keep the Context" in caught.value.fix


def test_in_a_cycle_that_the_control_thread_collects(open_context: OpenContext) -> None:
    """A finalizer runs on any thread, and one that waits for the control thread cannot run there."""
    other = open_context(Options())

    class Cycle:
        def __init__(self) -> None:
            self.context = Options().open()
            self.itself = self

    gone = weakref.ref(Cycle())
    collected = threading.Event()

    def collect() -> None:
        gc.collect()
        collected.set()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other._core.control.call(collect)
        assert collected.wait(PATIENCE_S)
    assert gone() is None
    assert len(caught) == 1


def test_no_warning_for_one_that_is_closed(no_leaks: None) -> None:
    held = [Options().open()]
    held[0].close()
    assert not _dropped(held.clear)


def test_at_the_end_of_the_interpreter() -> None:
    """One that is still there is closed, as ever; one that was just dropped is closed in time."""
    program = """
import os, zerohop as zh
kept = zh.Context()
dropped = zh.Context()
folders = [os.path.dirname(each._core.listeners.socket_path) for each in (kept, dropped)]
print(*folders)
del dropped
"""
    command = [sys.executable, "-W", "always", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("dropped and not closed") == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    for folder in ran.stdout.split():
        with pytest.raises(FileNotFoundError):
            Path(folder).stat()


def test_after_a_kill(open_context: OpenContext) -> None:
    """The next Context of the same user removes what the process has left, however soon it comes."""
    program = (
        "import zerohop as zh; context = zh.Context(); print(context._core.listeners.socket_path, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        left = Path(child.stdout.readline().decode().strip())
        open_context(Options())
        assert left.exists(), "it is in use"
        child.kill()
    assert left.exists()
    open_context(Options())
    assert not left.parent.exists()
