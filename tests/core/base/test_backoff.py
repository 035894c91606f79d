"""Failures are remembered for a while or for good. The tests replace the clock, and wait for none."""

from __future__ import annotations

import math

import pytest

from zerohop._native import Reason, Status
from zerohop.core.base import backoff
from zerohop.core.base.backoff import HOLD_OFF_S, Backoff, is_permanent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its only entry is what time it is."""
    now = [100.0]
    monkeypatch.setattr(backoff, "monotonic", lambda: now[0])
    return now


def test_for_a_while(clock: list[float]) -> None:
    failed: Backoff[str] = Backoff()
    assert failed.why_not("verbs") == ""
    assert failed.seconds_left("verbs") == math.inf
    failed.record_failure("verbs", "no answer")
    clock[0] += HOLD_OFF_S - 1
    assert failed.why_not("verbs") == "no answer"
    assert failed.failing() == {"verbs": "no answer"}
    assert failed.seconds_left("verbs") == pytest.approx(1)
    clock[0] += 2
    assert failed.why_not("verbs") == ""
    assert failed.failing() == {}
    assert failed.seconds_left("verbs") == math.inf


def test_longer_each_time_in_a_row_up_to_a_limit(clock: list[float]) -> None:
    failed: Backoff[int] = Backoff()
    held = []
    for _ in range(8):
        failed.record_failure(1, "no room")
        held.append(failed.seconds_left(1))
        clock[0] += held[-1] + 0.1
    assert held[:3] == pytest.approx([HOLD_OFF_S, 2 * HOLD_OFF_S, 4 * HOLD_OFF_S])
    assert held[-1] == held[-2] < 100
    # After a time without failures it begins anew.
    clock[0] += 1000
    failed.record_failure(1, "no room")
    assert failed.seconds_left(1) == pytest.approx(HOLD_OFF_S)
    # So it does once it has worked.
    failed.record_success(1)
    failed.record_failure(1, "no room")
    assert failed.seconds_left(1) == pytest.approx(HOLD_OFF_S)


def test_for_good(clock: list[float]) -> None:
    failed: Backoff[int] = Backoff()
    failed.record_failure(1, "no driver gives these pages", Status.UNSUPPORTED.value, Reason.NONE.value)
    failed.record_failure(2, "no room")
    clock[0] += 1e6
    assert failed.failing() == {1: "no driver gives these pages"}
    assert failed.seconds_left(1) == math.inf
    failed.record_failure(2, "no room")
    failed.retry_all()
    assert failed.failing() == {1: "no driver gives these pages"}


def test_which_failures_last() -> None:
    assert is_permanent(Status.UNSUPPORTED.value, Reason.NONE.value)
    assert not is_permanent(Status.UNSUPPORTED.value, Reason.PORT_DOWN.value)
    assert not is_permanent(Status.NO_MEMORY.value, Reason.MEMLOCK.value)
    assert not is_permanent(Status.DEVICE_ERROR.value, Reason.NONE.value)
