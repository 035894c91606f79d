"""Memory of a Pool that is asked for while other threads give some back, or close the Pool."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.interleaving import Meanwhile, at_each_step
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.memory import pool

if TYPE_CHECKING:
    from support.fixtures import OpenContext

CHUNK = 1 << 20
PART = 1000
LIMIT_S = PATIENCE_S


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options(providers=None))


def test_a_part_that_is_being_closed(context: zh.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """While close() waits for peers the part is on its way back, and alloc waits for it."""
    withdrawn, go_on = threading.Event(), threading.Event()
    withdraw, sleep = context._core.shares.withdraw, time.sleep

    def slowly(*arguments: Any) -> None:
        withdraw(*arguments)
        withdrawn.set()
        assert go_on.wait(LIMIT_S)

    def wait(seconds: float) -> None:
        go_on.set()
        sleep(seconds)

    monkeypatch.setattr(context._core.shares, "withdraw", slowly)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
    with context.pool("host", chunk_bytes=CHUNK, max_bytes=CHUNK) as made:
        part = made.alloc(CHUNK)
        part.share("rw")
        closing = threading.Thread(target=part.close)
        closing.start()
        try:
            assert withdrawn.wait(LIMIT_S)
            assert made.alloc(CHUNK, timeout=LIMIT_S).nbytes == CHUNK
        finally:
            go_on.set()
            closing.join()


@pytest.mark.parametrize("shared", [False, True])
def test_each_step_of_closing_a_part(context: zh.Context, *, shared: bool) -> None:
    """From the moment on in which it is on its way back, it is never out of sight."""
    with context.pool("host", chunk_bytes=CHUNK, max_bytes=CHUNK) as made:
        found: list[bool] = []

        def attempt(step: int) -> Meanwhile:
            part = made.alloc(CHUNK)
            if shared:
                part.share("rw")
            tried = Meanwhile(part.close, lambda: made.alloc(CHUNK), step)
            found.append(not tried.errors)
            return tried

        at_each_step(attempt)
        assert found == sorted(found)


def test_the_pool_is_closed_meanwhile(context: zh.Context) -> None:
    """Who allocates then gets a part that is good, or an error that says what happened."""

    def attempt(step: int) -> Meanwhile:
        made = context.pool("host", chunk_bytes=CHUNK)
        made.alloc(PART).close()
        parts: list[zh.Memory] = []
        tried = Meanwhile(lambda: parts.append(made.alloc(PART)), made.close, step)
        made.close()
        assert all(isinstance(error, zh.Closed) for error in tried.errors)
        while parts:
            parts[-1].fill(7)
            assert parts[-1].read_bytes() == b"\x07" * PART
            parts.pop().close()
        assert context.statistics().registrations == 0
        return tried

    at_each_step(attempt)
