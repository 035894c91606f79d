"""Answers to calls that come when their callers have stopped to wait: whoever is to give something back gets them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zerohop._native import Status
from zerohop.core.control import wire
from zerohop.core.peers.peer_link import After
from zerohop.core.peers.rpc import Rpc

if TYPE_CHECKING:
    from collections.abc import Callable


class Channel:
    """Takes what is posted, or refuses it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.posted: list[Any] = []
        self._error = error

    def post(self, message: Any) -> None:
        if self._error is not None:
            raise self._error
        self.posted.append(message)


def opened(channel: Channel | None = None) -> Rpc:
    """The calls of a connection that sends nothing."""
    link: Any = SimpleNamespace(peer="peer", lost=None)
    core: Any = SimpleNamespace(services={})
    taken: Any = channel or Channel()
    return Rpc(core, link, taken)


def answer(status: Status = Status.OK) -> wire.Answer:
    return wire.Answer(number=0, status=status.value, body=b"answer")


def late_answers(
    then: Callable[[Rpc, asyncio.Task[bytes]], object], channel: Channel | None = None
) -> tuple[list[bytes], BaseException | bytes]:
    """Begin a call, do something to it, and cancel it if it still waits; returns the late answers, and how it ended."""
    found: list[bytes] = []
    ended: list[bool] = []

    async def work() -> BaseException | bytes:
        rpc = opened(channel)
        task = asyncio.ensure_future(
            rpc.call("service", b"", After(late=found.append, ended=lambda: ended.append(True)))
        )
        await asyncio.sleep(0)
        then(rpc, task)
        (result,) = await asyncio.gather(task, return_exceptions=True)
        rpc.on_answer(answer())
        rpc.on_answer(answer())
        await asyncio.sleep(0)
        assert not rpc._pending
        assert ended == [True]
        return result

    return found, asyncio.run(work())


def test_an_answer_that_is_waited_for() -> None:
    late, ended = late_answers(lambda rpc, _: rpc.on_answer(answer()))
    assert (late, ended) == ([], b"answer")


def test_an_answer_after_a_cancellation() -> None:
    """It goes to one place, once."""
    late, ended = late_answers(lambda _, task: task.cancel())
    assert late == [b"answer"]
    assert isinstance(ended, asyncio.CancelledError)


def test_an_answer_at_the_moment_of_a_cancellation() -> None:
    """It has come, and its caller does not get it."""

    def both(rpc: Rpc, task: asyncio.Task[bytes]) -> None:
        rpc.on_answer(answer())
        task.cancel()

    late, ended = late_answers(both)
    assert isinstance(ended, asyncio.CancelledError)
    assert late == [b"answer"]


def test_a_refusal_gives_nothing() -> None:
    async def work() -> None:
        rpc = opened()
        refused = After(late=lambda _: pytest.fail("a refusal was given back"))
        task = asyncio.ensure_future(rpc.call("service", b"", refused))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rpc.on_answer(answer(Status.UNSUPPORTED))
        await asyncio.sleep(0)
        assert not rpc._pending

    asyncio.run(work())


def test_a_connection_that_ends_first() -> None:
    """No answer will come, and nothing waits for one."""
    late, ended = late_answers(lambda rpc, _: rpc.end())
    assert late == []
    assert isinstance(ended, asyncio.CancelledError)


def test_a_call_that_was_never_sent() -> None:
    late, ended = late_answers(lambda *_: None, Channel(MemoryError()))
    assert late == []
    assert isinstance(ended, MemoryError)


def test_a_call_that_nobody_waits_for() -> None:
    """Nothing of it stays: nobody is told of its answer."""

    async def work() -> None:
        rpc = opened()
        task = asyncio.ensure_future(rpc.call("service", b""))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert not rpc._pending

    asyncio.run(work())
