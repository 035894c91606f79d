"""Programs of trio and of gevent: what cannot work there raises an error that says what does."""

from __future__ import annotations

import _thread
import select
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext


def _awaitables(here: zh.Context, there: zh.Context) -> list[Callable[[], Any]]:
    handle = there.alloc(64).share("rw")
    return [
        lambda: here.write(bytes(64), handle),
        lambda: here.write(bytes(64), handle),
        lambda: here.connect(there.url),
        lambda: zh.gather([there.notification(timeout=PATIENCE_S)]),  # what has ended needs no loop
        lambda: there.notification(timeout=PATIENCE_S),
    ]


def test_an_await_without_a_loop_of_asyncio(open_context: OpenContext) -> None:
    """As under trio, which steps coroutines itself."""
    for make in _awaitables(open_context(Options()), open_context(Options())):
        waiting = make().__await__()
        with pytest.raises(RuntimeError, match=r"event loop of asyncio.*trio.to_thread.run_sync"):
            waiting.send(None)


def test_async_with_without_a_loop_of_asyncio(open_context: OpenContext) -> None:
    """It is refused at its beginning: its end could not close anything."""
    context = open_context(Options())
    entering = context.__aenter__()
    with pytest.raises(RuntimeError, match=r"event loop of asyncio.*Fix: use with.*trio.to_thread.run_sync"):
        entering.send(None)
    context.alloc(64).close()  # it is open as before


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [(_thread, "start_new_thread", "threads"), (socket, "socket", "sockets"), (select, "poll", "select")],
)
def test_a_process_that_gevent_has_patched(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, said: str) -> None:
    def patch() -> None:
        raise AssertionError("it was used")

    patch.__module__ = "gevent.monkey"
    with monkeypatch.context() as patched:
        patched.setattr(module, name, patch)
        with pytest.raises(RuntimeError, match=rf"gevent has patched the {said}.*patch_all\(thread=False"):
            zh.Context()


def test_an_import_after_gevent_has_patched_everything() -> None:
    """It removes names of the standard library. The import works, so that opening a Context can say what is wrong."""
    program = "import select, selectors; del select.epoll, selectors.EpollSelector; import zerohop; print('imported')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "imported\n", done.stderr
