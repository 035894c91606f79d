"""Wrong proofs slow their source down, and nobody else; they are forgotten with time."""

from __future__ import annotations

import itertools

import pytest

from zerohop.core.control import throttle
from zerohop.core.control.throttle import Throttle

FREE = 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle, "time", clock)
    return clock


def _guess(guard: Throttle, source: str, times: int = 1) -> None:
    for _ in range(times):
        guard.wrong(source)


def test_a_few_are_free(clock: Clock) -> None:
    guard = Throttle()
    for number in range(1, FREE + 1):
        assert guard.turn("10.0.0.1") == 0.0
        assert guard.wrong("10.0.0.1") == (number >= FREE)


def test_then_each_takes_twice_as_long(clock: Clock) -> None:
    """Until the pause is at its longest; half a guess in a second is what stays."""
    guard, pauses = Throttle(), []
    _guess(guard, "10.0.0.1", FREE)
    assert guard.turn("10.0.0.1") == 0.0
    for _ in range(8):
        _guess(guard, "10.0.0.1")
        wait = guard.turn("10.0.0.1")
        assert wait is not None
        pauses.append(wait)
        clock.now += wait
    assert pauses[0] == 0.125
    assert all(0 < early <= late for early, late in itertools.pairwise(pauses))
    assert pauses[-1] == 2.0


def test_guesses_at_once_take_their_turns(clock: Clock) -> None:
    """Many sockets guess no faster than one; and those that would wait long are refused, so that they hold nothing."""
    guard = Throttle()
    _guess(guard, "10.0.0.1", FREE + 8)
    turns = [guard.turn("10.0.0.1") for _ in range(64)]
    assert turns[:2] == [0.0, 2.0]
    assert turns[2:] == [None] * 62
    clock.now += 4.0
    assert guard.turn("10.0.0.1") == 0.0


def test_others_do_not_wait(clock: Clock) -> None:
    guard = Throttle()
    _guess(guard, "10.0.0.1", 50)
    guard.turn("10.0.0.1")
    for other in ("10.0.0.2", "::1", "2001:db8::1"):
        assert guard.turn(other) == 0.0


@pytest.mark.parametrize(
    ("one", "another"),
    [("2001:db8::1", "2001:db8::ffff:1"), ("fe80::1%eth0", "fe80::2%eth0"), ("10.0.0.1", "::ffff:10.0.0.1")],
)
def test_one_source_has_many_addresses(clock: Clock, one: str, another: str) -> None:
    guard = Throttle()
    _guess(guard, one, 50)
    guard.turn(one)
    assert guard.turn(another) != 0.0


def test_time_forgives(clock: Clock) -> None:
    guard = Throttle()
    _guess(guard, "10.0.0.1", 50)
    clock.now += 10.0 * (50 - FREE + 1) + 1
    assert [guard.turn("10.0.0.1") for _ in range(5)] == [0.0] * 5


def test_very_many_at_once(clock: Clock) -> None:
    """They are forgiven like some, and the pause stays what it is."""
    guard = Throttle()
    _guess(guard, "10.0.0.1", 5000)
    assert [guard.turn("10.0.0.1") for _ in range(2)] == [0.0, 2.0]
    clock.now += 310.0
    assert [guard.turn("10.0.0.1") for _ in range(5)] == [0.0] * 5


def test_it_remembers_a_bounded_number(clock: Clock) -> None:
    """Those that guessed last."""
    guard = Throttle()
    _guess(guard, "10.0.0.1", 50)
    for number in range(3000):
        guard.wrong(f"10.1.{number >> 8}.{number & 255}")
        if number % 500 == 0:
            guard.wrong("10.0.0.1")
    assert len(guard._sources) == 1024
    guard.turn("10.0.0.1")
    assert guard.turn("10.0.0.1") != 0.0
