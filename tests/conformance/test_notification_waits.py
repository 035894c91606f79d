"""A wait for a notification that is interrupted or cancelled loses none."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

WAYS: dict[str, Callable[[zh.Operation[zh.Notification]], Any]] = {
    "result": lambda wait: wait.result(),
    "result with a timeout": lambda wait: wait.result(PATIENCE_S),
    "exception": lambda wait: wait.exception(),
    "wait_all": lambda wait: zh.wait_all([wait]),
    "gather": lambda wait: zh.gather([wait]).result(),
}
# Within the time after which a wait looks for signals, so that both come in the same native call.
SIGNAL_S, NOTIFICATION_S = 0.03, 0.06


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_handler_that_raises(open_context: OpenContext, way: str) -> None:
    """The notification that comes before the handler runs stays with the wait."""
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    connection = there.connect(here.url).result(PATIENCE_S)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        wait = here.notification()
        timer = threading.Timer(NOTIFICATION_S, lambda: there.notify(connection, 7).result(PATIENCE_S))
        timer.start()
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_S)
        with pytest.raises(Interrupted):
            WAYS[way](wait)
        timer.join()
        assert wait.result(PATIENCE_S).value == 7
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spin_us", [50.0, 1e7])
def test_what_is_cancelled_takes_nothing(open_context: OpenContext, way: str, spin_us: float) -> None:
    """The waiting thread is told at once, and what comes from then on is for the next wait."""
    here = open_context(Options(providers=("shm",), spin_us=spin_us))
    there = open_context(Options(providers=("shm",)))
    connection = there.connect(here.url).result(PATIENCE_S)
    for value in range(20):
        wait = here.notification()
        ended: list[BaseException] = []

        def follow(wait: zh.Operation[zh.Notification] = wait, ended: list[BaseException] = ended) -> None:
            try:
                WAYS[way](wait)
            except BaseException as error:
                ended.append(error)

        waiting = threading.Thread(target=follow)
        waiting.start()
        while not wait._claimed:  # type: ignore[attr-defined] # of the native wait
            time.sleep(0.0001)
        assert wait.cancel()
        assert not wait.cancel()
        there.notify(connection, value).result(PATIENCE_S)
        assert here.notification(PATIENCE_S).result().value == value
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert len(ended) == 1


def test_a_weak_reference(open_context: OpenContext) -> None:
    wait = open_context(Options(providers=("shm",))).notification(PATIENCE_S)
    reference = weakref.ref(wait)
    assert reference() is wait
    assert wait.cancel()
    del wait
    assert reference() is None


def test_wrong_arguments_of_result(open_context: OpenContext) -> None:
    wait = open_context(Options(providers=("shm",))).notification(PATIENCE_S)
    for arguments, named in (((1, 2), {}), ((), {"foo": 1}), ((1,), {"timeout": 1})):
        with pytest.raises(TypeError, match=r"^result\(\) takes one argument, timeout$"):
            wait.result(*arguments, **named)
    assert wait.cancel()
