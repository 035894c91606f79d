"""The same operations in a coroutine, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.loops import LOOPS, run
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import expect_equal, pattern
from support.service import Service
from support.sizes import MIB
from support.world import PROVIDERS, WORLDS

if TYPE_CHECKING:
    from support.fixtures import OpenContext
    from support.world import World

pytestmark = pytest.mark.parametrize("loop", LOOPS)

LIMIT_S = PATIENCE_S
# What is placed by the call itself, and what is still in flight when the call returns.
LENGTHS = (8, 4097, 65_537, 3 * MIB + 1)


async def _connect(world: World) -> zh.Connection:
    return await world.here.connect(world.there.identity.url)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_await(world: World, loop: str) -> None:
    target = world.target("numpy", LENGTHS[-1])

    async def main() -> None:
        for seed, nbytes in enumerate(LENGTHS):
            data = pattern(seed, nbytes)
            back = np.zeros(nbytes, np.uint8)
            write = world.here.write(data, target.handle[:nbytes])
            assert await write == nbytes
            assert write.done()
            assert write.result() == nbytes
            assert await world.here.read(target.handle[:nbytes], back) == nbytes
            expect_equal(back, data, "read back")
            assert await world.here.write_pages(data, target.handle[:nbytes], [0], [0], page_bytes=nbytes) == nbytes
            assert await world.here.fetch_add(target.handle, 0) == int.from_bytes(data[:8].tobytes(), "little")
            await world.here.flush()

    run(loop, main())


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_awaiting_what_ended_long_ago_and_twice(world: World, loop: str) -> None:
    target = world.target("numpy", 64)
    operation = world.here.write(pattern(1, 64), target.handle)
    assert operation.result(PATIENCE_S) == 64

    async def main() -> tuple[int, int]:
        return await operation, await operation

    assert run(loop, main()) == (64, 64)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_everybody_may_await_one_operation(world: World, loop: str) -> None:
    """Three tasks, a task on another loop, a thread without one, and as_completed: all are woken."""
    source = world.target("numpy", 16)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    receive = connection.recv(np.zeros(16, np.uint8))
    received: list[int] = []
    threads = [
        threading.Thread(target=lambda: received.append(run(loop, _awaited(receive)))),
        threading.Thread(target=lambda: received.append(receive.result(PATIENCE_S))),
        threading.Thread(
            target=lambda: received.extend(each.result() for each in zh.as_completed([receive], PATIENCE_S))
        ),
    ]

    async def main() -> None:
        tasks = [asyncio.ensure_future(_awaited(receive)) for _ in range(3)]
        await asyncio.sleep(0.01)  # until they have suspended, of which there is no event
        world.there.call(Service.send, world.here.url, source.number, 0, 16)
        received.extend(await asyncio.gather(*tasks))

    for thread in threads:
        thread.start()
    run(loop, main())
    for thread in threads:
        thread.join(PATIENCE_S)
    assert received == [16] * 6


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_gather(world: World, loop: str) -> None:
    """100 operations of all lengths at once, awaited by as many tasks."""
    slot = MIB // 4 + 1
    total = 100
    target = world.target("numpy", slot * total)
    lengths = [1 + (k * 104_729) % slot for k in range(total)]

    async def one(k: int) -> int:
        data = pattern(k, lengths[k])
        remote = target.handle[k * slot : k * slot + lengths[k]]
        back = np.zeros(lengths[k], np.uint8)
        written = await world.here.write(data, remote)
        assert await world.here.read(remote, back) == written
        expect_equal(back, data, f"task {k}")
        return written

    async def main() -> list[int]:
        return await asyncio.gather(*(one(k) for k in range(total)))

    assert run(loop, main()) == lengths


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_wait_all(world: World, loop: str) -> None:
    target = world.target("numpy", MIB)
    data = pattern(1, MIB)
    pieces = [slice(start, start + 100_000) for start in range(0, 1_000_000, 100_000)]

    async def main() -> None:
        values = await zh.gather([world.here.write(data[p], target.handle[p]) for p in pieces])
        assert values == [100_000] * len(pieces)
        assert await zh.gather([]) == []

    run(loop, main())
    target.expect(0, 1_000_000, 1)
    assert zh.wait_all([world.here.write(data[p], target.handle[p]) for p in pieces], PATIENCE_S) == [100_000] * 10
    assert zh.wait_all([], 1) == []


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_wait_all_with_a_failure(world: World, loop: str) -> None:
    """The error of the failed one is raised, and the others have ended too."""
    target = world.target("numpy", MIB)
    readable = target.share("r")
    data = pattern(1, MIB)

    def post() -> list[zh.Operation[int]]:
        good = [world.here.write(data[:MIB], target.handle) for _ in range(3)]
        room = np.zeros(8, np.uint8)
        connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
        return [*good, connection.recv(room, timeout=0.05)]

    async def main() -> None:
        operations = post()
        with pytest.raises(zh.DeadlineExceeded):
            await zh.gather(operations)
        assert all(operation.done() for operation in operations)

    run(loop, main())
    operations = post()
    with pytest.raises(zh.DeadlineExceeded):
        zh.wait_all(operations, PATIENCE_S)
    assert [operation.exception(PATIENCE_S) is None for operation in operations] == [True, True, True, False]
    assert readable.rights == "r"


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_as_completed(world: World, loop: str) -> None:
    """Each operation once, the one that waits for a message last, in a coroutine and without."""
    slot = 200_000
    target = world.target("numpy", 10 * slot)
    data = pattern(1, 10 * slot)
    pieces = [slice(start, start + slot) for start in range(0, 10 * slot, slot)]
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    message = world.target("numpy", 16)
    room = np.zeros(16, np.uint8)

    def post() -> list[zh.Operation[int]]:
        return [connection.recv(room)] + [world.here.write(data[p], target.handle[p]) for p in pieces]

    async def main() -> list[zh.Operation[int]]:
        posted, ended = post(), []
        async for operation in zh.as_completed(posted):
            assert operation.done()
            ended.append(operation)
            if len(ended) == 10:
                world.there.call(Service.send, world.here.url, message.number, 0, 16)
        assert ended[-1] is posted[0]
        return [operation for operation in ended if operation in posted]

    assert len(run(loop, main())) == 11
    posted, ended = post(), []
    for operation in zh.as_completed(posted, timeout=PATIENCE_S):
        assert operation.done()
        ended.append(operation)
        if len(ended) == 10:
            world.there.call(Service.send, world.here.url, message.number, 0, 16)
    assert ended[-1] is posted[0]
    assert len(ended) == len({id(operation) for operation in ended}) == 11
    assert list(zh.as_completed([])) == []


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_as_completed_past_its_timeout(world: World, loop: str) -> None:
    """What has ended is given, then DeadlineExceeded; what is in flight stays in flight."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    target = world.target("numpy", 16)
    room = np.zeros(16, np.uint8)
    write, receive = world.here.write(pattern(1, 16), target.handle), connection.recv(room)
    write.result(PATIENCE_S)
    ended = iter(zh.as_completed([receive, write], timeout=0.05))
    assert next(ended) is write
    with pytest.raises(zh.DeadlineExceeded):
        next(ended)

    async def main() -> None:
        ended = aiter(zh.as_completed([receive], timeout=0.05))
        with pytest.raises(zh.DeadlineExceeded):
            await anext(ended)
        assert not receive.done()

    run(loop, main())
    world.there.call(Service.send, world.here.url, target.number, 0, 16)
    assert receive.result(PATIENCE_S) == 16


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_notifications(world: World, loop: str) -> None:
    """`async for` gives each of them, and leaving the loop leaves the rest."""

    async def main() -> list[int]:
        values = []
        async for note in world.here.notifications():
            assert note.peer.peer == world.there.identity.id
            values.append(note.value)
            if len(values) == 20:
                break
        return values

    for value in range(25):
        world.there.call(Service.notify, world.here.url, value)
    assert run(loop, main()) == list(range(20))
    assert [world.here.notification(PATIENCE_S).result().value for _ in range(5)] == list(range(20, 25))


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
class TestNotificationsThatDoNotCome:
    def test_deadline_of_one_among_many(self, world: World, loop: str) -> None:
        """It ends by its own deadline, however it is waited for."""

        async def main() -> None:
            with pytest.raises(zh.DeadlineExceeded):
                await zh.gather([world.here.notification(0.02)])
            pending = [world.here.notification(30), world.here.notification(0.02)]
            ended = []
            async for operation in zh.as_completed(pending, timeout=PATIENCE_S):
                ended.append(operation)
                pending[0].cancel()
            assert ended == pending[::-1]

        run(loop, main())
        with pytest.raises(zh.DeadlineExceeded):
            zh.wait_all([world.here.notification(0.02)], PATIENCE_S)
        pending = [world.here.notification(30), world.here.notification(0.02)]
        ended = []
        for operation in zh.as_completed(pending, timeout=PATIENCE_S):
            ended.append(operation)
            pending[0].cancel()
        assert ended == pending[::-1]
        assert isinstance(pending[1].exception(), zh.DeadlineExceeded)

    def test_cancelled_from_elsewhere(self, world: World, loop: str) -> None:
        """Whoever awaits it is woken."""

        async def main() -> None:
            waits = [world.here.notification() for _ in range(2)]
            alone = asyncio.ensure_future(_received(waits[0]))
            both = asyncio.ensure_future(_all(waits[1:]))
            await asyncio.sleep(0.01)  # until they have suspended, of which there is no event
            assert all(wait.cancel() for wait in waits)
            for task in (alone, both):
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, PATIENCE_S)

        run(loop, main())

    def test_giving_up_leaves_nothing_behind(self, world: World, loop: str) -> None:
        """Of 200 waits that gave up, none is told of the notification that comes at last, nor of the message."""
        connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
        receive = connection.recv(np.zeros(8, np.uint8))
        message = world.target("numpy", 8)

        async def main() -> None:
            for _ in range(200):
                with pytest.raises(zh.DeadlineExceeded):
                    await world.here.notification(0.0001)
                with pytest.raises(zh.DeadlineExceeded):
                    async for _ in zh.as_completed([receive], timeout=0):
                        pass
            queue = world.here._core.loops.running()._queue
            queue.drain()
            world.there.call(Service.notify, world.here.url, 1)
            world.there.call(Service.send, world.here.url, message.number, 0, 8)
            assert world.here.notification(PATIENCE_S).result().value == 1
            assert receive.result(PATIENCE_S) == 8
            assert queue.drain() == []

        run(loop, main())


async def _received(wait: zh.Operation[zh.Notification]) -> int:
    return (await wait).value


async def _all(waits: list[zh.Operation[zh.Notification]]) -> int:
    return len(await zh.gather(waits))


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_ping_pong_between_coroutines_and_a_peer(world: World, loop: str) -> None:
    """Two tasks each wait for their own message while a third takes notifications: nobody starves."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    source = world.target("numpy", 16)
    rooms = [np.zeros(16, np.uint8) for _ in range(2)]

    async def receive(k: int) -> int:
        return await connection.recv(rooms[k])

    async def notified() -> int:
        return (await world.here.notification()).value

    async def main() -> None:
        for turn in range(50):
            tasks = [asyncio.ensure_future(receive(k)) for k in range(2)]
            note = asyncio.ensure_future(notified())
            await asyncio.sleep(0)
            world.there.call(Service.send, world.here.url, source.number, 0, 16)
            world.there.call(Service.notify, world.here.url, turn)
            world.there.call(Service.send, world.here.url, source.number, 0, 8)
            assert await note == turn
            assert sorted(await asyncio.gather(*tasks)) == [8, 16]

    run(loop, main())


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestCancellation:
    def test_cancelled_task(self, world: World, loop: str) -> None:
        """The task ends at once; the Context goes on, and the next message goes to the next receive."""
        source = world.target("numpy", 16)
        source.fill(0, 16, 5)
        abandoned, room = np.zeros(16, np.uint8), np.zeros(16, np.uint8)

        async def main() -> None:
            connection = await _connect(world)
            task = asyncio.ensure_future(_awaited(connection.recv(abandoned)))
            await asyncio.sleep(0.01)  # until the task has suspended, of which there is no event
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            receive = connection.recv(room)
            world.there.call(Service.send, world.here.url, source.number, 0, 16)
            assert await receive == 16
            expect_equal(room, pattern(5, 16), "the message")
            assert not abandoned.any()

        run(loop, main())

    def test_cancelled_operation(self, world: World, loop: str) -> None:
        async def main() -> None:
            connection = await _connect(world)
            operation = connection.recv(np.zeros(16, np.uint8))
            waiting = asyncio.ensure_future(_awaited(operation))
            await asyncio.sleep(0.01)  # until the task has suspended, of which there is no event
            assert operation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await operation
            assert operation.done()
            assert not operation.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

        run(loop, main())

    def test_wait_for(self, world: World, loop: str) -> None:
        async def main() -> None:
            connection = await _connect(world)
            for _ in range(20):
                with pytest.raises((asyncio.TimeoutError, TimeoutError)):
                    await asyncio.wait_for(_awaited(connection.recv(np.zeros(16, np.uint8))), 0.002)
            await connection.flush()

        run(loop, main())

    def test_deadline(self, world: World, loop: str) -> None:
        async def main() -> None:
            connection = await _connect(world)
            with pytest.raises(zh.DeadlineExceeded) as caught:
                await connection.recv(np.zeros(16, np.uint8), timeout=0.01)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.operation == "recv"
            with pytest.raises(zh.DeadlineExceeded):
                await world.here.notification(0.01)

        run(loop, main())


async def _awaited(operation: zh.Operation[int]) -> int:
    return await operation


@pytest.mark.parametrize("provider", PROVIDERS)
def test_first_use_and_close_in_a_coroutine(open_context: OpenContext, provider: str, loop: str) -> None:
    """Contexts opened, connected, used and closed on the loop."""
    options = Options(providers=(provider,))

    async def main() -> None:
        async with options.open() as first, options.open() as second:
            target = np.zeros(100_000, np.uint8)
            memory = second.register(target)
            handle = memory.share("rw")
            note = second.notification()
            assert await first.write(pattern(1, 100_000), handle, notify=4) == 100_000
            assert (await note).value == 4
            expect_equal(target, pattern(1, 100_000), "the target")
        with pytest.raises(zh.Closed):
            await first.write(pattern(1, 100_000), handle)

    run(loop, main())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_loop_is_not_blocked_by_first_use(open_context: OpenContext, provider: str, loop: str) -> None:
    """Connecting happens elsewhere: the loop turns while a peer that was never seen before does not answer."""
    options = Options(providers=(provider,))
    first, second = open_context(options), open_context(options)
    with socket.create_server(("127.0.0.1", 0)) as silent, second.alloc(64) as memory:
        shared = memory.share("rw")._share
        url = f"zerohop://127.0.0.1:{silent.getsockname()[1]}/{shared.owner}"
        handle = zh.RemoteBuffer(shared._replace(url=url), 0, 64)

        async def main() -> None:
            operation = first.write(pattern(1, 64), handle)
            waiting = asyncio.ensure_future(_awaited(operation))
            for _ in range(10):
                await asyncio.sleep(0)
            # A call that waited for the answer would have waited until the deadline.
            assert not waiting.done()
            assert operation.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        run(loop, main())


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_other_tasks_get_their_turn(world: World, loop: str) -> None:
    """Where all that one task awaits ends in place."""
    target = world.target("alloc", 64)
    source = world.buffer("numpy", 64)

    async def main() -> int:
        turns, writing = 0, True

        async def other() -> None:
            nonlocal turns
            while writing:
                turns += 1
                await asyncio.sleep(0)

        await world.here.write(source.memory, target.handle)
        task = asyncio.ensure_future(other())
        limit = time.monotonic() + LIMIT_S
        while turns <= 3 and time.monotonic() < limit:
            await world.here.write(source.memory, target.handle)
        writing = False
        await task
        return turns

    # One before the first write and one at the end come by themselves.
    assert run(loop, main()) > 3
