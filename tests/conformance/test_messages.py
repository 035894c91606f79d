"""send and recv on a Connection: both directions, either side first, every length."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.buffers import ON_GPUS, Kind
from support.loops import LOOPS, run
from support.matrix import every_pair
from support.patience import LAB, PATIENCE_S
from support.service import Service
from support.sizes import ROOM, cases
from support.world import WORLDS

if TYPE_CHECKING:
    from support.world import World

MEMORIES: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)


def _connection(world: World) -> zh.Connection:
    return world.here.connect(world.there.identity.url).result(PATIENCE_S)


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(MEMORIES, MEMORIES), indirect=["world"])
class TestEveryPair:
    def test_send(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        """The receiver waits first."""
        source = world.buffer(source_kind, ROOM)
        target = world.target(target_kind, ROOM)
        connection = _connection(world)
        for case in cases(notified=False):
            source.fill(case.source, case.nbytes, case.seed)
            receiving = world.there.start(Service.recv, world.here.url, target.number, case.target, case.nbytes)
            sent = connection.send(source.memory[case.source : case.source + case.nbytes])
            assert receiving.result() == case.nbytes
            assert sent.result(PATIENCE_S) == case.nbytes
            target.settle(case.target, case.nbytes, case.seed)
            source.poison(case.source, case.nbytes)
        target.expect_poison()

    def test_recv(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        """The sender waits first, and less arrives than there is room for."""
        into = world.buffer(source_kind, ROOM)
        target = world.target(target_kind, ROOM)
        connection = _connection(world)
        for case in cases(notified=False):
            target.fill(case.target, case.nbytes, case.seed)
            sending = world.there.start(Service.send, world.here.url, target.number, case.target, case.nbytes)
            received = connection.recv(into.memory[case.source : case.source + case.nbytes + 100])
            assert received.result(PATIENCE_S) == case.nbytes
            assert sending.result() == case.nbytes
            into.settle(case.source, case.nbytes, case.seed)
            target.poison(case.target, case.nbytes)
        into.expect_poison()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_messages_arrive_in_order(world: World) -> None:
    """200 messages of mixed lengths, all of them posted before the first is received."""
    slot, total = 10_000, 200
    lengths = [1 + (k * 7919) % slot for k in range(total)]
    source = world.buffer("numpy", slot * total)
    target = world.target("numpy", slot)
    connection = _connection(world)
    sends = []
    for k, length in enumerate(lengths):
        source.fill(k * slot, length, k)
        sends.append(connection.send(source.memory[k * slot : k * slot + length]))
    for k, length in enumerate(lengths):
        assert world.there.call(Service.recv, world.here.url, target.number, 0, slot) == length
        target.settle(0, length, k)
    assert zh.wait_all(sends, PATIENCE_S) == lengths


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_order_where_the_lane_is_full(world: World, loop: str) -> None:
    """On an event loop a send to a full lane is posted later; neither the loop's nor a thread's sends overtake it."""
    total = 300 if LAB else 1000  # either is more than a lane takes
    target = world.target("numpy", 8)
    connection = _connection(world)

    async def main() -> list[zh.Operation[int]]:
        sends = [connection.send(k.to_bytes(8, "little"), timeout=100) for k in range(total)]
        with pytest.raises(zh.WouldBlock):
            connection.send_nowait(bytes(8))
        cancelled = connection.send(bytes(8))
        cancelled.cancel()
        sends.append(await asyncio.to_thread(connection.send, total.to_bytes(8, "little"), timeout=100))
        return sends

    sends = run(loop, main())
    for k in range(total + 1):
        assert world.there.call(Service.recv, world.here.url, target.number, 0, 8) == 8
        assert int.from_bytes(target.get(0, 8), "little") == k
    assert zh.wait_all(sends, PATIENCE_S) == [8] * (total + 1)
    receiving = world.there.start(Service.recv, world.here.url, target.number, 0, 8)
    assert connection.send_nowait(bytes(8)).result(PATIENCE_S) == 8
    assert receiving.result() == 8


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_message_longer_than_the_room_for_it(world: World) -> None:
    """The receiver is told, nothing beyond its room is touched, and the next message is whole."""
    source = world.buffer("numpy", 1000)
    into = world.buffer("numpy", 1000)
    target = world.target("numpy", 1000)
    target.fill(0, 1000, 1)
    connection = _connection(world)
    received = connection.recv(into.memory[:999])
    sent = world.there.call(Service.try_send, world.here.url, target.number, 1000)
    assert sent.kind == "ok" or sent.says("truncated")
    with pytest.raises(zh.ZerohopError, match=r"(?i)truncated"):
        received.result(PATIENCE_S)
    into.expect_poison(999, 1000)
    into.poison(0, 1000)
    receiving = world.there.start(Service.recv, world.here.url, target.number, 0, 1000)
    source.fill(0, 1000, 2)
    connection.send(source.memory).result(PATIENCE_S)
    assert receiving.result() == 1000
    target.expect(0, 1000, 2)


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_both_directions_at_once(world: World) -> None:
    """Each side sends 2 MiB while it receives as much: neither waits for the other's room."""
    nbytes = 2 * 1024 * 1024 + 1
    source = world.buffer("numpy", nbytes)
    into = world.buffer("numpy", nbytes)
    target = world.target("numpy", nbytes)
    source.fill(0, nbytes, 1)
    target.fill(0, nbytes, 2)
    connection = _connection(world)
    for _ in range(5):
        sending = world.there.start(Service.send, world.here.url, target.number, 0, nbytes)
        sent = connection.send(source.memory)
        assert connection.recv(into.memory).result(PATIENCE_S) == nbytes
        assert sending.result() == nbytes
        assert world.there.call(Service.recv, world.here.url, target.number, 0, nbytes) == nbytes
        assert sent.result(PATIENCE_S) == nbytes
        target.expect(0, nbytes, 1)
        into.settle(0, nbytes, 2)
        target.fill(0, nbytes, 2)
