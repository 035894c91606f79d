"""A signal's handler that raises in the middle of a call of a Store or a Server: nothing stays, and close() goes on."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.interrupting import at_each_line
from support.lanes import eventually
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S, patience
from support.stores import SERVED, opened
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fixtures import OpenContext

MIB = 1 << 20


def every_line_or_some(stride: int) -> pytest.MarkDecorator:
    """Run a test before each line, which takes minutes, and always before one of so many."""
    slow = [pytest.mark.slow, pytest.mark.timeout(patience(300))]
    return pytest.mark.parametrize("stride", [pytest.param(1, marks=slow, id="each"), pytest.param(stride, id="some")])


@pytest.fixture(autouse=True)
def _in_destructors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops an exception that comes up in a destructor, where nobody can catch it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


@every_line_or_some(11)
@pytest.mark.parametrize("way", SERVED)
@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
def test_a_transfer_of_an_array(
    no_leaks: None, tmp_path: Path, random_file: Callable[..., np.ndarray], way: str, writes: bool, stride: int
) -> None:
    """What was lent to the server is not kept, whether or not the transfer goes on."""
    there = random_file("data", MIB)
    with opened(tmp_path, way) as store, store.open("data", "r+").result() as file:
        array = np.zeros(1)

        def action() -> None:
            nonlocal array
            array = there.copy()
            (file.write_from if writes else file.read_into)(array).result(PATIENCE_S)

        def check() -> None:
            nonlocal array
            store.context.flush().result(PATIENCE_S)
            assert (array == there).all()
            array = np.zeros(1)
            gc.collect()
            eventually(lambda: store.context.statistics().shares == before, "a share stays")

        action()
        array = np.zeros(1)
        gc.collect()
        before = store.context.statistics().shares
        at_each_line(action, check, stride=stride)


@every_line_or_some(13)
@pytest.mark.parametrize("kind", ["folder", "client", "server"])
def test_close(open_context: OpenContext, tmp_path: Path, kind: str, stride: int) -> None:
    """The next close() does what is left; the Context is then as if nothing had been there."""
    ctx = open_context(Options())
    other = storage.Server(tmp_path) if kind == "client" else None
    made: list[Any] = []

    def make() -> storage.Store | storage.Server:
        if kind == "server":
            return storage.Server(tmp_path, ctx=ctx, memory=4 * MIB)
        return storage.open_store(tmp_path if other is None else other.url, ctx=ctx)

    def action() -> None:
        made[0].close()

    def check() -> None:
        made.pop().close()
        expect_given_back(before, holdings, "this process")
        if other is not None:
            eventually(lambda: other.statistics().clients == 0, "a client stays")
        made.append(make())

    make().close()
    before = holdings()
    made.append(make())
    at_each_line(action, check, stride=stride)
    made.pop().close()
    if other is not None:
        other.close()


@every_line_or_some(17)
def test_opening_a_server(open_context: OpenContext, tmp_path: Path, stride: int) -> None:
    """Another one can be opened afterwards."""
    ctx = open_context(Options())
    servers: list[storage.Server] = []

    def check() -> None:
        while servers:
            servers.pop().close()
        gc.collect()
        storage.Server(tmp_path, ctx=ctx, memory=4 * MIB).close()

    at_each_line(lambda: servers.append(storage.Server(tmp_path, ctx=ctx, memory=4 * MIB)), check, stride=stride)


@every_line_or_some(29)
@pytest.mark.parametrize("served", [False, True], ids=["folder", "client"])
def test_a_store_that_is_dropped_then(tmp_path: Path, served: bool, stride: int) -> None:
    """What opening or closing has left goes with it, and with its Context."""
    with ExitStack() as opened:
        where = opened.enter_context(storage.Server(tmp_path)).url if served else tmp_path

        def action() -> None:
            storage.open_store(where).close()

        action()
        gc.collect()
        before = holdings()
        at_each_line(action, lambda: expect_given_back(before, holdings, "this process"), stride=stride)
