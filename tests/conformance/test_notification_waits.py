"""A wait for a notification that is interrupted or cancelled loses none."""

from __future__ import annotations

import functools
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.transfers.notification import NotificationWait

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
def test_a_wait_that_is_dropped_with_its_notification(
    open_context: OpenContext, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler raised before anybody was told of it: the next wait gets it, before those that came since."""
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    connection = there.connect(here.url).result(PATIENCE_S)
    join = NotificationWait._join

    def interrupted(wait: Any, timeout: float | None) -> None:
        join(wait, PATIENCE_S if timeout is None else timeout)
        raise Interrupted

    monkeypatch.setattr(NotificationWait, "_join", interrupted)
    wait: Any = here.notification()
    wait._timer = ()  # as if somebody else waited, too: the native part leaves the wait to Python's
    there.notify(connection, 7, message=b"seven").result(PATIENCE_S)
    with pytest.raises(Interrupted):
        WAYS[way](wait)
    monkeypatch.undo()
    there.notify(connection, 8).result(PATIENCE_S)
    del wait
    first, second = here.notification(PATIENCE_S).result(), here.notification(PATIENCE_S).result()
    assert (first.value, first.nbytes, first.peer.peer, first.message) == (7, 0, there.id, b"seven")
    assert second.value == 8
    with pytest.raises(zh.WouldBlock):
        here.notification_nowait()


@pytest.mark.parametrize("how", ["done", "exception"])
def test_a_wait_that_has_told_of_its_notification(open_context: OpenContext, how: str) -> None:
    """It may be a mere signal, and must not come a second time."""
    here, there = (open_context(Options(providers=("shm",))) for _ in range(2))
    connection = there.connect(here.url).result(PATIENCE_S)
    there.notify(connection, 7).result(PATIENCE_S)
    wait = here.notification(PATIENCE_S)
    if how == "done":
        eventually(wait.done, "it does not come")
    else:
        assert wait.exception(PATIENCE_S) is None
    with pytest.raises(zh.WouldBlock):
        here.notification_nowait()


def test_of_a_transport_whose_queue_is_closed(open_context: OpenContext) -> None:
    """Another Transport may have the number of the queue by then, and gets nothing that was not meant for it."""
    contexts = [open_context(Options(providers=("shm",))) for _ in range(2)]
    one, two = (zh.Transport(ctx=context) for context in contexts)
    one.connect(two.bind()).result(PATIENCE_S)
    one.write(contexts[0].alloc(8)[:], contexts[1].alloc(8).share("rw"), notify=7).result(PATIENCE_S)
    wait: Any = two.wait_for_write(PATIENCE_S)
    # As a wait does that is then interrupted. A look takes what the progress thread has brought to the queue by now.
    eventually(wait._poll, "it does not come")
    number, engine = wait._number, contexts[1]._core.engine
    one.close()
    two.close()
    while (opened := engine.open_queue()) != number:
        engine.close_queue(opened)
    del wait
    assert engine.pop_notification(-1, 0, number) is None
    engine.close_queue(number)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spin_us", [50.0, 1e7])
def test_what_is_cancelled_takes_nothing(open_context: OpenContext, way: str, spin_us: float) -> None:
    """The waiting thread is told at once, and what comes from then on is for the next wait."""
    here = open_context(Options(providers=("shm",), spin_us=spin_us))
    there = open_context(Options(providers=("shm",)))
    connection = there.connect(here.url).result(PATIENCE_S)
    for value in range(20):
        wait: Any = here.notification()
        ended: list[BaseException] = []

        def follow(wait: zh.Operation[zh.Notification] = wait, ended: list[BaseException] = ended) -> None:
            try:
                WAYS[way](wait)
            except BaseException as error:
                ended.append(error)

        waiting = threading.Thread(target=follow)
        waiting.start()
        eventually(functools.partial(getattr, wait, "_claimed"), "the thread does not wait")
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
