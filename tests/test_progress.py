"""Tests that take long say so while they run."""

from __future__ import annotations

import faulthandler
import time
from types import SimpleNamespace
from typing import Any

import pytest

from support import progress


def run(limit: float | None, guard: str) -> None:
    """A test with this limit that takes a third of a second."""
    marker = None if limit is None else SimpleNamespace(args=(limit,))
    config = SimpleNamespace(getini=lambda name: guard)
    item: Any = SimpleNamespace(nodeid="test_x", config=config, get_closest_marker=lambda name: marker)
    running = progress.pytest_runtest_protocol(item)
    next(running)
    time.sleep(0.3)
    with pytest.raises(StopIteration):
        running.send(True)


@pytest.mark.parametrize(("limit", "said"), [(None, False), (20.0, False), (progress._SHORT_S + 1, True)])
def test_long_tests_say_that_they_go_on(
    limit: float | None, said: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SAID_EVERY_S", 0.02)
    run(limit, "0")
    assert capfd.readouterr().out.startswith("\ntest_x, for 0 s\n") == said


@pytest.mark.parametrize(("guard", "armed"), [("0", []), ("90", [600 + progress._SHORT_S])])
def test_faulthandler_leaves_long_tests_their_own_limit(
    guard: str, armed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    cancelled: list[None] = []
    monkeypatch.setattr(progress, "SAID_EVERY_S", 0.02)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda limit, **options: limits.append(limit))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: cancelled.append(None))
    run(600, guard)
    assert limits == armed
    assert len(cancelled) == len(armed)
