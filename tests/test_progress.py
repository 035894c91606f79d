"""Tests that take long say so while they run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from support import progress


@pytest.mark.parametrize(("limit", "said"), [(None, False), (20.0, False), (progress._SHORT_S + 1, True)])
def test_long_tests_say_that_they_go_on(
    limit: float | None, said: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SAID_EVERY_S", 0.02)
    marker = None if limit is None else SimpleNamespace(args=(limit,))
    item: Any = SimpleNamespace(nodeid="test_x", get_closest_marker=lambda name: marker)
    running = progress.pytest_runtest_protocol(item)
    next(running)
    time.sleep(0.3)
    with pytest.raises(StopIteration):
        running.send(True)
    assert capfd.readouterr().out.startswith("\ntest_x, for 0 s\n") == said
