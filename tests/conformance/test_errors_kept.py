"""Errors of operations: none keeps in a circle what the operation held, which is given back with the operation."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.fixtures import OpenContext

NBYTES = 1 << 16


class Array(np.ndarray):
    """An array that can be watched."""


def array() -> Array:
    return np.zeros(NBYTES, np.uint8).view(Array)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run(begin: Callable[[], Any]) -> None:
    """Await it in a task. Asyncio's own frames keep an error that leaves the task, so that it does not."""

    async def wait() -> None:
        with pytest.raises(zh.ZerohopError):
            await begin()

    asyncio.run(wait())
    raise zh.ZerohopError("it failed")


# No variable of theirs has the operation: a program's own would keep it, too.
WAITS: dict[str, Callable[[Callable[[], zh.Operation[int]]], object]] = {
    "result": lambda begin: begin().result(PATIENCE_S),
    "await": run,
    "wait_all": lambda begin: zh.wait_all([begin()], PATIENCE_S),
    "gather": lambda begin: zh.gather([begin()]).result(PATIENCE_S),
    "await gather": lambda begin: run(lambda: zh.gather([begin()])),
}


def expect_given_back(fails: Callable[[Array], object]) -> None:
    def once() -> weakref.ref[Array]:
        held = array()
        with pytest.raises(zh.ZerohopError):
            fails(held)
        return weakref.ref(held)

    held = once()
    eventually(lambda: held() is None, "the memory of an operation that failed is kept")


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("provider", ["shm", "tcp"])
@pytest.mark.parametrize("how", WAITS)
def test_of_a_write_that_is_refused(open_context: OpenContext, provider: str, how: str) -> None:
    options = Options(providers=(provider,))
    context, owner = open_context(options), open_context(options)
    handle: Any = owner.alloc(NBYTES).share("r")
    context.read(handle, array()).result(PATIENCE_S)
    expect_given_back(lambda held: WAITS[how](lambda: context.write(held, handle)))


@pytest.mark.usefixtures("_no_collector")
def test_of_a_recv_that_ran_out_of_time(open_context: OpenContext) -> None:
    context, other = open_context(Options()), open_context(Options())
    connection = context.connect(other.url).result(PATIENCE_S)
    expect_given_back(lambda held: connection.recv(held, timeout=0.01).result(PATIENCE_S))
    expect_given_back(lambda held: context.recv(held, timeout=0.01).result(PATIENCE_S))


@pytest.mark.usefixtures("_no_collector")
def test_of_a_file_that_ends(open_context: OpenContext, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"short")
    context = open_context(Options())
    with storage.open_store(tmp_path, ctx=context) as store, store.open("data").result(PATIENCE_S) as file:
        expect_given_back(lambda held: file.read_into(held).result(PATIENCE_S))
