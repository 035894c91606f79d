"""One event loop that several Contexts share, and one Context that several event loops share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.loops import LOOPS, run
from support.options import Options, fewest_devices
from support.patience import PATIENCE_S, times
from support.pattern import expect_equal, pattern
from support.world import PROVIDERS, WORLDS

if TYPE_CHECKING:
    from support.fixtures import OpenContext
    from support.world import Target, World

NBYTES = 100_001
ACKNOWLEDGED = 0xFFFF_FFFF


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_one_loop_many_contexts(open_context: OpenContext, provider: str, loop: str) -> None:
    """Five Contexts write to each other in a ring, all of them awaited on one loop, with notifications."""
    contexts = [open_context(Options(providers=(provider,), sim_devices=fewest_devices(provider))) for _ in range(5)]
    targets = [np.zeros(NBYTES, np.uint8) for _ in contexts]
    memories = [context.register(target) for context, target in zip(contexts, targets, strict=True)]
    handles = [memory.share("rw") for memory in memories]

    async def one(k: int) -> None:
        following = (k + 1) % len(contexts)
        received = acknowledged = 0
        for turn in range(times(20)):
            seed = turn * 10 + k
            assert await contexts[k].write(pattern(seed, NBYTES), handles[following], notify=seed) == NBYTES
            # The one before may be a turn ahead, the one after as much behind.
            while received <= turn or acknowledged <= turn:
                note = await contexts[k].notification()
                if note.value == ACKNOWLEDGED:
                    acknowledged += 1
                    continue
                assert note.value == received * 10 + (k - 1) % len(contexts)
                expect_equal(targets[k], pattern(note.value, NBYTES), f"context {k}, turn {turn}")
                # Only now may the target be overwritten.
                await note.peer.notify(ACKNOWLEDGED)
                received += 1

    async def main() -> None:
        await asyncio.gather(*(one(k) for k in range(len(contexts))))
        mixed = [context.write(targets[0], handles[1]) for context in contexts]
        assert await zh.gather(mixed) == [NBYTES] * len(contexts)
        ended = [operation async for operation in zh.as_completed([c.flush() for c in contexts])]
        assert len(ended) == len(contexts)

    run(loop, main())


def _drive(world: World, target: Target, number: int, loop: str, failures: list[BaseException]) -> None:
    start = number * NBYTES
    remote = target.handle[start : start + NBYTES]

    async def main() -> None:
        back = np.zeros(NBYTES, np.uint8)
        for turn in range(times(50)):
            data = pattern(number << 16 | turn, NBYTES)
            assert await world.here.write(data, remote) == NBYTES
            assert await world.here.read(remote, back) == NBYTES
            expect_equal(back, data, f"loop {number}, turn {turn}")
            await asyncio.gather(*(_small(world, remote) for _ in range(4)))

    try:
        run(loop, main())
    except BaseException as error:
        failures.append(error)


async def _small(world: World, remote: zh.RemoteBuffer) -> None:
    assert await world.here.read(remote[:8], np.zeros(8, np.uint8)) == 8


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_many_loops_one_context(world: World) -> None:
    """Two loops of each kind, each in a thread of its own, and a thread that waits without any."""
    names = [*LOOPS, *LOOPS]
    target = world.target("numpy", (len(names) + 1) * NBYTES)
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_drive, args=[world, target, number, loop, failures])
        for number, loop in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    own = target.handle[len(names) * NBYTES :]
    while any(thread.is_alive() for thread in threads):
        assert world.here.write(pattern(1, NBYTES), own).result(PATIENCE_S) == NBYTES
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_loops_one_after_another(world: World, loop: str) -> None:
    """A loop that was closed leaves nothing behind that the next one would trip over, pending receives included."""
    target = world.target("numpy", 300_000)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    for seed in range(10):

        async def main(seed: int = seed) -> None:
            assert await world.here.write(pattern(seed, 300_000), target.handle) == 300_000
            waiting = asyncio.ensure_future(_receive(connection))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

        run(loop, main())
        target.expect(0, 300_000, seed)


async def _receive(connection: zh.Connection) -> int:
    return await connection.recv(np.zeros(8, np.uint8))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_loop_closed_under_an_operation(world: World, loop: str) -> None:
    """The operation outlives the loop that awaited it; another loop, or none, gets its result."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    room = np.zeros(8, np.uint8)
    operation = connection.recv(room, timeout=PATIENCE_S)

    async def main() -> None:
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(asyncio.shield(_await_it(operation)), 0.01)

    event_loop = LOOPS[loop]()
    try:
        event_loop.run_until_complete(main())
        left = asyncio.all_tasks(event_loop)
        assert len(left) == 1
    finally:
        for task in asyncio.all_tasks(event_loop):
            task.cancel()
        event_loop.run_until_complete(asyncio.sleep(0))
        event_loop.close()
    with pytest.raises((zh.DeadlineExceeded, concurrent.futures.CancelledError)):
        operation.result()


async def _await_it(operation: zh.Operation[int]) -> int:
    return await operation
