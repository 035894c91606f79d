"""The outcome of a small operation, asked for in every way and by several at once: the object that a post makes."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually_freed
from support.leaks import expect_given_back, holdings
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import PROVIDERS, WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.world import World

THREADS = 6
ROUNDS = 40

ASKS: dict[str, Callable[[zh.Operation[int]], Any]] = {
    "result": lambda operation: operation.result(),
    "result in time": lambda operation: operation.result(PATIENCE_S),
    "exception": lambda operation: operation.exception(PATIENCE_S),
    "explain": lambda operation: (operation.result(PATIENCE_S), operation.explain()),
    "cancel": lambda operation: (operation.result(PATIENCE_S), operation.cancel()),
    "repr": lambda operation: (operation.result(PATIENCE_S), repr(operation)),
    "await": lambda operation: asyncio.run(_awaited(operation)),
}


async def _awaited(operation: zh.Operation[int]) -> int:
    return await operation


@pytest.mark.parametrize("first", ASKS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_each_way_after_each_other(world: World, first: str) -> None:
    target = world.target("numpy", 64)
    # In flight, and therefore not all done by the call: the first one that asks waits for it.
    world.here.write(pattern(1, 64), target.handle).result(PATIENCE_S)
    for second in ASKS:
        operation = world.here.write(pattern(2, 64), target.handle, notify=1)
        ASKS[first](operation)
        assert operation.done()
        ASKS[second](operation)
        assert operation.result() == operation.nbytes == 64
        assert operation.exception() is None
        assert "64 B in" in str(operation.explain())
        assert not operation.cancel()
        world.expect_notification(1, 64)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_several_ask_at_once(world: World) -> None:
    """Whoever comes first takes the outcome over from the engine; the others must not miss it."""
    target = world.target("numpy", 64)
    source = world.here.register(pattern(1, 64))
    ways = [ask for name, ask in ASKS.items() if name != "await"]
    wrong: list[BaseException] = []
    for _ in range(ROUNDS):
        operation = world.here.write(source, target.handle)
        begin = threading.Barrier(THREADS)

        def ask(number: int, operation: zh.Operation[int] = operation, begin: threading.Barrier = begin) -> None:
            begin.wait()
            try:
                ways[number % len(ways)](operation)
                assert operation.result() == 64
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong, wrong


@pytest.mark.parametrize("provider", PROVIDERS)
def test_operations_that_are_kept_hold_nothing(open_context: OpenContext, start_peer: StartPeer, provider: str) -> None:
    """Neither the memory, once they have ended, nor the engine, once their Context is closed."""
    peer = start_peer(Options(providers=(provider,)))
    before = holdings()
    context = open_context(Options(providers=(provider,)))
    handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, peer.call(Service.new, "numpy", 64, 0), "rw"))
    data = np.zeros(64, np.uint8)
    memory = context.register(data)
    alive = weakref.ref(memory)
    kept = [context.write(memory, handle) for _ in range(20)]
    assert [operation.result() for operation in kept] == [64] * 20
    del memory
    eventually_freed(alive)
    context.close()
    expect_given_back(before, holdings, "this process")
    assert [operation.result() for operation in kept] == [64] * 20


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_what_is_dropped_is_freed(world: World) -> None:
    """Also where a cycle leads through it, of which no count ever drops to nothing."""
    target = world.target("numpy", 64)

    class Source(np.ndarray[Any, Any]):
        """One that can hold something."""

    data = np.zeros(64, np.uint8).view(Source)
    operation = world.here.write(data, target.handle)
    operation.result(PATIENCE_S)
    memory = world.here.register(data)
    pending = world.here.write(memory, target.handle)
    data.operation = pending  # type: ignore[attr-defined]
    alive = weakref.ref(memory)
    pending.result(PATIENCE_S)
    del data, operation, pending, memory
    eventually_freed(alive)
