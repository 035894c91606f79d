"""write_many, of a Context and of a Transport: many writes as one Operation."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.loops import LOOPS, run
from support.matrix import every_pair
from support.options import Options
from support.patience import PATIENCE_S, times
from support.pattern import pattern
from support.ranges import MIXES, Pairs, Plan
from support.service import Service
from support.world import WORLDS

if TYPE_CHECKING:
    from support.transports import Link
    from support.world import Target, World


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(KINDS, KINDS), indirect=["world"])
def test_every_mix(world: World, source_kind: Kind, target_kind: Kind) -> None:
    """Each range where it belongs, nothing beside it, with and without a notification, twice in a row."""
    for seed, lengths in enumerate(MIXES.values(), 1):
        plan = Plan(lengths, seed)
        source = world.buffer(source_kind, plan.room)
        source.fill(0, plan.room, seed)
        target = world.target(target_kind, plan.room)
        pairs = plan.pairs(source, target.handle)
        for notify in (seed, None):
            operation = world.here.write_many(pairs, notify=notify)
            assert operation.result(PATIENCE_S) == plan.nbytes
            if notify is not None:
                world.expect_notification(seed, plan.nbytes)
            else:
                world.here.flush().result(PATIENCE_S)
            plan.settle(target, seed)
    world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestOfATransport:
    def test_into_longer_ranges(self, world: World, link: Link) -> None:
        """There the remote range may be longer, as for `write`."""
        plan = Plan(MIXES["different"], 1)
        source, target = world.buffer("numpy", plan.room), world.target("numpy", plan.room)
        source.fill(0, plan.room, 1)
        pairs = [
            (view, target.handle[there:])
            for (view, _), there in zip(plan.pairs(source, target.handle), plan.there, strict=True)
        ]
        assert link.here.write_many(pairs, notify=9).result(PATIENCE_S) == plan.nbytes
        link.expect_arrival(9, plan.nbytes)
        plan.settle(target, 1)
        world.expect_no_notification()

    def test_of_none(self, world: World, link: Link) -> None:
        """It is done, and tells the peer where it is asked to."""
        assert link.here.write_many([]).result(PATIENCE_S) == 0
        assert link.here.write_many([], notify=3).result(PATIENCE_S) == 0
        link.expect_arrival(3, 0)
        link.expect_none()

    def test_of_several_memories(self, world: World, link: Link) -> None:
        """From Memories and raw arrays into two handles: one Operation, one notification, after all of them."""
        sources = [pattern(seed, 5000 + seed) for seed in range(6)]
        targets = [world.target("numpy", 40_000), world.target("numpy", 40_000)]
        memory = world.buffer("numpy", 6000)
        memory.fill(0, 6000, 50)
        pairs: Pairs = [(array, targets[seed % 2].handle[seed * 6000 :]) for seed, array in enumerate(sources)]
        pairs.append((memory.memory, targets[0].handle[36_000 - 5990 : 36_010]))
        pairs = [*pairs[:-1], (memory.memory[:3000], targets[0].handle[36_000:])]
        for _ in range(2):
            assert link.here.write_many(pairs, notify=4).result(PATIENCE_S) == sum(map(len, sources)) + 3000
            link.expect_arrival(4, sum(map(len, sources)) + 3000)
            for seed, array in enumerate(sources):
                assert targets[seed % 2].get(seed * 6000, array.nbytes) == array.tobytes()
            targets[0].expect(36_000, 3000, 50)
            for target in targets:
                target.poison()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_to_several_peers(world: World) -> None:
    """Of a Context the writes may go to several; only a notification has to have one."""
    with Options(providers=(world.provider,)).open() as third:
        near = third.register(np.zeros(64, np.uint8))
        far = world.target("numpy", 64)
        source = world.buffer("numpy", 128)
        source.fill(0, 128, 1)
        pairs: Pairs = [(source.memory[:64], near.share("rw")), (source.memory[64:], far.handle)]
        with pytest.raises(ValueError, match="goes to one peer"):
            world.here.write_many(pairs, notify=1)
        world.here.flush().result(PATIENCE_S)
        far.expect_poison()
        assert near.read_bytes() == bytes(64)
        assert world.here.write_many(pairs).result(PATIENCE_S) == 128
        world.here.flush().result(PATIENCE_S)
        assert near.read_bytes() == pattern(1, 128)[:64].tobytes()
        assert far.get(0, 64) == pattern(1, 128)[64:].tobytes()
        near.close()
    world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestRefused:
    """By the call, with nothing posted: neither what is wrong nor what is right beside it."""

    def _expect_nothing(self, world: World, target: Target) -> None:
        world.here.flush().result(PATIENCE_S)
        target.expect_poison()
        world.expect_no_notification()

    @pytest.mark.parametrize("at", [0, 1, 2])
    def test_lengths_that_differ(self, world: World, at: int) -> None:
        source, target = world.buffer("numpy", 64), world.target("numpy", 64)
        pairs: Pairs = [(source.memory[8 * k : 8 * k + 8], target.handle[8 * k : 8 * k + 8]) for k in range(3)]
        for here, there in ((7, 8), (8, 7), (0, 8), (8, 0)):
            wrong = [*pairs]
            wrong[at] = source.memory[:here], target.handle[:there]
            with pytest.raises(ValueError, match=f"{here} bytes here and {there} there, in pair {at}"):
                world.here.write_many(wrong, notify=1)
        self._expect_nothing(world, target)

    @pytest.mark.parametrize(
        "what", ["no pair", "no memory", "no handle", "swapped", "three", "a Memory that is closed"]
    )
    def test_what_is_no_pair(self, world: World, what: str) -> None:
        source, target = world.buffer("numpy", 64), world.target("numpy", 64)
        closed = world.here.register(np.zeros(64, np.uint8))
        closed.close()
        here, there = source.memory[:8], target.handle[:8]
        wrong: Any = {
            "no pair": here,
            "no memory": (3, there),
            "no handle": (here, here),
            "swapped": (there, here),
            "three": (here, there, there),
            "a Memory that is closed": (closed[:8], there),
        }[what]
        for pairs in ([wrong], [(here, there), wrong], [wrong, (here, there)]):
            with pytest.raises((TypeError, zh.Closed)):
                world.here.write_many(pairs)
        self._expect_nothing(world, target)

    def test_a_notification_of_nothing(self, world: World) -> None:
        with pytest.raises(ValueError, match="goes to nobody"):
            world.here.write_many([], notify=1)

    @pytest.mark.parametrize("value", [-1, 1 << 32, "1"])
    def test_a_notification_that_is_none(self, world: World, value: Any) -> None:
        source, other, target = world.buffer("numpy", 8), world.buffer("numpy", 8), world.target("numpy", 16)
        pairs: Pairs = [(source.memory, target.handle[:8]), (other.memory, target.handle[8:])]
        for some in (pairs[:1], pairs):
            with pytest.raises((ValueError, OverflowError, TypeError)):
                world.here.write_many(some, notify=value)
        self._expect_nothing(world, target)

    def test_by_the_peer(self, world: World) -> None:
        """A handle that was revoked: the one Operation says so, and the peer is not told of it."""
        source = world.buffer("numpy", 64)
        target, other = world.target("numpy", 64), world.target("numpy", 64)
        pairs: Pairs = [(source.memory[k : k + 8], target.handle[k : k + 8]) for k in range(0, 64, 8)]
        world.here.write_many(pairs).result(PATIENCE_S)
        target.poison()
        assert target.revoke(PATIENCE_S).kind == "ok"
        for mixed in ([], [(source.memory[:8], other.handle[:8])]):
            with pytest.raises(zh.AccessDenied):
                world.here.write_many(pairs + mixed, notify=1).result(PATIENCE_S)
        target.expect_poison()
        world.expect_no_notification()


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_many_of_them_from_many_threads(world: World, link: Link) -> None:
    """Eight threads, each with lists of its own into a part of its own; each list is heard of once."""
    rounds, count, nbytes = times(16), 100, 96
    target = world.target("numpy", 8 * count * nbytes)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            memory = world.here.register(np.zeros(count * nbytes, np.uint8))
            room = target.handle[number * count * nbytes : (number + 1) * count * nbytes]
            order = np.random.default_rng(number).permutation(count)
            pairs = [
                (memory[k * nbytes : (k + 1) * nbytes], room[to * nbytes : (to + 1) * nbytes])
                for k, to in enumerate(map(int, order))
            ]
            back = np.zeros(count * nbytes, np.uint8)
            for turn in range(rounds):
                data = pattern(number << 16 | turn, count * nbytes)
                memory.numpy()[:] = data
                link.here.write_many(pairs, notify=number << 16 | turn).result(PATIENCE_S)
                link.here.read(back, room).result(PATIENCE_S)
                assert np.array_equal(back.reshape(count, nbytes)[order], data.reshape(count, nbytes))
            memory.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    heard = [world.there.call(Service.wait_for_write, link.there) for _ in range(8 * rounds)]
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(note.value for note in heard) == sorted(n << 16 | turn for n in range(8) for turn in range(rounds))
    assert {note.nbytes for note in heard} == {count * nbytes}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_awaited(world: World, link: Link, loop: str) -> None:
    plan = Plan(MIXES["small and large"], 1)
    source, target = world.buffer("numpy", plan.room), world.target("numpy", plan.room)
    source.fill(0, plan.room, 1)
    pairs = plan.pairs(source, target.handle)

    async def main() -> list[int]:
        return await asyncio.gather(*(_awaited(link.here.write_many(pairs, notify=k)) for k in range(20)))

    assert run(loop, main()) == [plan.nbytes] * 20
    assert sorted(world.there.call(Service.wait_for_write, link.there).value for _ in range(20)) == list(range(20))
    plan.settle(target, 1)


async def _awaited(operation: zh.Operation[int]) -> int:
    return await operation


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_ten_thousand(world: World, link: Link) -> None:
    """More than one request carries."""
    plan = Plan([8 + k % 57 for k in range(times(10_000))], 1)
    source, target = world.buffer("numpy", plan.room), world.target("numpy", plan.room)
    source.fill(0, plan.room, 1)
    operation = link.here.write_many(plan.pairs(source, target.handle), notify=1)
    assert operation.result(PATIENCE_S) == plan.nbytes
    link.expect_arrival(1, plan.nbytes)
    plan.settle(target, 1)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_what_it_says_of_itself(world: World) -> None:
    source, target = world.buffer("numpy", 64), world.target("numpy", 64)
    pairs: Pairs = [(source.memory[:8], target.handle[:8]), (source.memory[8:16], target.handle[40:48])]
    operation = world.here.write_many(pairs)
    operation.result(PATIENCE_S)
    assert operation.nbytes == 16
    assert str(operation.explain()).startswith(f"{world.provider} (")
    assert "16 B" in str(operation.explain())
    assert "write_many of 16 bytes" in repr(operation)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_what_several_memories_say_of_themselves(world: World) -> None:
    """Each path that was taken is named, once."""
    sources = [world.buffer("numpy", 64) for _ in range(3)]
    target = world.target("numpy", 192)
    pairs: Pairs = [(source.memory, target.handle[64 * i : 64 * i + 64]) for i, source in enumerate(sources)]
    operation = world.here.write_many(pairs)
    operation.result(PATIENCE_S)
    assert str(operation.explain()).startswith(f"{world.provider} (")
    assert str(operation.explain()).count(f"{world.provider} (") == 1
    assert "192 B" in str(operation.explain())
