"""Ctrl-C, or whatever else a signal handler raises, while a Context is being opened."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import patience
from zerohop.core.base.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_US, STEP_US, ROUNDS = 50, 150, 80


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], object]]:
    """Has the signal handler raise Alarm after so many seconds."""

    def ring(_number: int, _frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# The handler may raise between the return of the constructor and the assignment here. The Context is then dropped, and
# its finalizer closes it, with this warning.
@pytest.mark.filterwarnings("ignore:<Context .* was dropped and not closed:ResourceWarning")
@pytest.mark.timeout(patience(60))
def test_at_any_moment(no_leaks: None, alarm: Callable[[float], object]) -> None:
    """The handler's own exception arrives, and nothing of the Context is left: no descriptor, thread or file."""
    before, ended = holdings(), set()
    for number in range(ROUNDS):
        context = None
        try:
            alarm((FIRST_US + number * STEP_US) / 1e6)
            context = Options(sim_devices=0).open()
            alarm(0)
        except Alarm:
            ended.add("interrupted")
        if context is not None:
            ended.add("opened")
            alarm(0)
            context.close()
    assert "interrupted" in ended
    expect_given_back(before, holdings, "this process")


def test_a_constructor_that_was_interrupted_twice() -> None:
    """The second one does not wait, and what was opened is undone all the same."""
    go_on, undone = threading.Event(), threading.Event()
    waits: list[BaseException] = []

    def call() -> str:
        go_on.wait()
        return "opened"

    def undo(value: str) -> None:
        assert value == "opened"
        undone.set()

    def ring(_number: int, _frame: object) -> None:
        waits.append(Alarm())
        raise waits[-1]

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(Alarm):
            uninterrupted(call, undo)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(waits) == 2
    go_on.set()
    assert undone.wait(patience(5))


def test_its_own_errors_arrive() -> None:
    with pytest.raises(ValueError, match="no such level"):
        uninterrupted(lambda: _fail("no such level"), lambda _: None)
    with pytest.raises(zh.Unsupported, match="cannot listen"):
        zh.Context(listen="192.0.2.1:1", secret="x")


def _fail(text: str) -> None:
    raise ValueError(text)
