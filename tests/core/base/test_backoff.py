"""What did not work, and for how long that counts. No clock is waited for."""

from __future__ import annotations

import math

import pytest

from zerohop._native import Reason, Status
from zerohop.core.base import backoff
from zerohop.core.base.backoff import HOLD_OFF_S, Setbacks, lasts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its only entry is what time it is."""
    now = [100.0]
    monkeypatch.setattr(backoff, "monotonic", lambda: now[0])
    return now


def test_for_a_while(clock: list[float]) -> None:
    failed: Setbacks[str] = Setbacks()
    assert failed.why_not("verbs") == ""
    assert failed.wait_s("verbs") == math.inf
    failed.note("verbs", "no answer")
    clock[0] += HOLD_OFF_S - 1
    assert failed.why_not("verbs") == "no answer"
    assert failed.now() == {"verbs": "no answer"}
    assert failed.wait_s("verbs") == pytest.approx(1)
    clock[0] += 2
    assert failed.why_not("verbs") == ""
    assert failed.now() == {}
    assert failed.wait_s("verbs") == math.inf


def test_longer_each_time_in_a_row_up_to_a_limit(clock: list[float]) -> None:
    failed: Setbacks[int] = Setbacks()
    held = []
    for _ in range(8):
        failed.note(1, "no room")
        held.append(failed.wait_s(1))
        clock[0] += held[-1] + 0.1
    assert held[:3] == pytest.approx([HOLD_OFF_S, 2 * HOLD_OFF_S, 4 * HOLD_OFF_S])
    assert held[-1] == held[-2] < 100
    # After a time without failures it begins anew.
    clock[0] += 1000
    failed.note(1, "no room")
    assert failed.wait_s(1) == pytest.approx(HOLD_OFF_S)
    # So it does once it has worked.
    failed.forget(1)
    failed.note(1, "no room")
    assert failed.wait_s(1) == pytest.approx(HOLD_OFF_S)


def test_for_good(clock: list[float]) -> None:
    failed: Setbacks[int] = Setbacks()
    failed.note(1, "no driver gives these pages", for_good=True)
    failed.note(2, "no room")
    clock[0] += 1e6
    assert failed.now() == {1: "no driver gives these pages"}
    assert failed.wait_s(1) == math.inf
    failed.note(2, "no room")
    failed.forget_passing()
    assert failed.now() == {1: "no driver gives these pages"}


def test_which_failures_last() -> None:
    assert lasts(Status.UNSUPPORTED.value, Reason.NONE.value)
    assert not lasts(Status.UNSUPPORTED.value, Reason.PORT_DOWN.value)
    assert not lasts(Status.NO_MEMORY.value, Reason.MEMLOCK.value)
    assert not lasts(Status.DEVICE_ERROR.value, Reason.NONE.value)
