"""The order in which names are looked up of which more are wanted than are looked up at once."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zerohop.core.control import name_lookup
from zerohop.core.control.address import Address, parse
from zerohop.core.control.name_lookup import NameLookup

if TYPE_CHECKING:
    import pytest


def _url(number: int) -> Address:
    return parse(f"zerohop://slow{number}.example.org:99/{number:032x}")


class Order:
    """Notes the names in the order of their lookups, each of which ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._under_way: asyncio.Future[list[Any]] | None = None
        control: Any = SimpleNamespace(run_in_thread=self._look_up)
        self.names = NameLookup(control)

    async def _look_up(self, _ask: object, host: str, _port: object) -> list[Any]:
        self.asked.append(int(host.partition(".")[0].removeprefix("slow")))
        self._under_way = asyncio.get_running_loop().create_future()
        return await self._under_way

    async def want(self, number: int) -> asyncio.Task[Any]:
        wanted = asyncio.get_running_loop().create_task(self.names.find(_url(number)))
        await asyncio.sleep(0)
        return wanted

    async def finish_all(self) -> None:
        while self._under_way is not None:
            ended, self._under_way = self._under_way, None
            ended.set_result([])
            for _ in range(10):
                await asyncio.sleep(0)


def _order(monkeypatch: pytest.MonkeyPatch, numbers: list[int], given_up: tuple[int, ...] = ()) -> list[int]:
    monkeypatch.setattr(name_lookup, "_MOST_AT_ONCE", 1)

    async def body() -> list[int]:
        order = Order()
        tasks = [(number, await order.want(number)) for number in numbers]
        for number, task in tasks:
            if number in given_up:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await order.finish_all()
        for number, task in tasks:
            assert number in given_up or task.done()
        return order.asked

    return asyncio.run(body())


def test_the_oldest_and_the_newest_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many names hold up neither one that was asked for before them, nor one that is asked for after them."""
    assert _order(monkeypatch, [0, 1, 2, 3, 4, 5]) == [0, 1, 5, 2, 4, 3]


def test_a_name_that_is_asked_for_again_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _order(monkeypatch, [0, 1, 2, 3, 4, 2]) == [0, 1, 2, 3, 4]


def test_names_that_nobody_waits_for_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _order(monkeypatch, [0, 1, 2, 3, 4, 5], (1, 5)) == [0, 2, 4, 3]
