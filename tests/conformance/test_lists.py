"""Ranges of any lengths as one Operation: write_list, read_list and read_many; every byte and its neighbours count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.matrix import every_pair
from support.patience import PATIENCE_S
from support.pattern import pattern, poison
from support.ranges import MIXES, VERY_MANY, Plan
from support.service import Service
from support.world import WORLDS

if TYPE_CHECKING:
    from support.buffers import Buffer
    from support.world import Target, World

# Lists start where no page of the machine does.
LOCAL_BASE, REMOTE_BASE = 4097, 3


def _read_back(plan: Plan, seed: int) -> np.ndarray[Any, Any]:
    """Return what the memory here holds after the ranges were read of a target that holds the pattern."""
    there, result = pattern(seed, plan.room), poison(plan.room)
    for here, begin, nbytes in zip(plan.here, plan.there, plan.lengths, strict=True):
        result[here : here + nbytes] = there[begin : begin + nbytes]
    return result


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(KINDS, KINDS), indirect=["world"])
class TestEveryPair:
    def test_write_list(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        for seed, lengths in enumerate([*MIXES.values(), VERY_MANY], 1):
            plan = Plan(lengths, seed)
            source = world.buffer(source_kind, LOCAL_BASE + plan.room)
            source.fill(LOCAL_BASE, plan.room, seed)
            target = world.target(target_kind, REMOTE_BASE + plan.room)
            notify = seed if seed % 2 else None
            operation = world.here.write_list(
                source.memory[LOCAL_BASE:], target.handle[REMOTE_BASE:], plan.here, plan.there, lengths, notify=notify
            )
            assert operation.result(PATIENCE_S) == plan.nbytes
            if notify is None:
                world.here.flush().result(PATIENCE_S)
            else:
                world.expect_notification(seed, plan.nbytes)
            got = np.frombuffer(target.get(REMOTE_BASE, plan.room), np.uint8)
            assert np.array_equal(got, plan.expected(pattern(seed, plan.room), plan.room))
            assert target.get(0, REMOTE_BASE) == poison(REMOTE_BASE).tobytes()
        world.expect_no_notification()

    def test_read_list(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        for seed, lengths in enumerate([*MIXES.values(), VERY_MANY], 1):
            plan = Plan(lengths, seed)
            into, target = self._filled(world, source_kind, target_kind, plan, seed)
            notify = seed if seed % 2 else None
            operation = world.here.read_list(
                target.handle[REMOTE_BASE:], into.memory[LOCAL_BASE:], plan.there, plan.here, lengths, notify=notify
            )
            assert operation.result(PATIENCE_S) == plan.nbytes
            if notify is not None:
                world.expect_notification(seed, plan.nbytes)
            assert np.array_equal(into.get(LOCAL_BASE, plan.room), _read_back(plan, seed))
            into.expect_poison(0, LOCAL_BASE)
        world.expect_no_notification()

    def test_read_many(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        for seed, lengths in enumerate(MIXES.values(), 1):
            plan = Plan(lengths, seed)
            into, target = self._filled(world, source_kind, target_kind, plan, seed)
            pairs = [
                (
                    target.handle[REMOTE_BASE + there : REMOTE_BASE + there + nbytes],
                    into.memory[LOCAL_BASE + here : LOCAL_BASE + here + nbytes],
                )
                for here, there, nbytes in zip(plan.here, plan.there, lengths, strict=True)
            ]
            assert world.here.read_many(pairs, notify=seed, message=b"read").result(PATIENCE_S) == plan.nbytes
            note = world.there.call(Service.notification)
            assert (note.value, note.nbytes, note.message) == (seed, plan.nbytes, b"read")
            assert np.array_equal(into.get(LOCAL_BASE, plan.room), _read_back(plan, seed))
        world.expect_no_notification()

    def _filled(
        self, world: World, source_kind: Kind, target_kind: Kind, plan: Plan, seed: int
    ) -> tuple[Buffer, Target]:
        into = world.buffer(source_kind, LOCAL_BASE + plan.room)
        target = world.target(target_kind, REMOTE_BASE + plan.room)
        target.fill(REMOTE_BASE, plan.room, seed)
        return into, target


@pytest.mark.parametrize("world", WORLDS, indirect=True)
class TestLists:
    def test_neighbours_move_as_one(self, world: World) -> None:
        """5,000 ranges that follow each other on both sides, and then on one side only."""
        source, target = world.buffer("numpy", 20_000), world.target("numpy", 20_000)
        source.fill(0, 20_000, 1)
        at = np.arange(5000) * 4
        world.here.write_list(source.memory, target.handle, at, at, np.full(5000, 4), notify=1).result(PATIENCE_S)
        world.expect_notification(1, 20_000)
        target.settle(0, 20_000, 1)
        world.here.write_list(source.memory, target.handle, at, at[::-1], np.full(5000, 4), notify=2).result(PATIENCE_S)
        world.expect_notification(2, 20_000)
        got = np.frombuffer(target.get(0, 20_000), np.uint8).reshape(5000, 4)
        assert np.array_equal(got[::-1].reshape(-1), pattern(1, 20_000))

    def test_the_arrays_may_change_after_the_call(self, world: World) -> None:
        source, target = world.buffer("numpy", 4096), world.target("numpy", 4096)
        source.fill(0, 4096, 1)
        here, there, lengths = (np.array(numbers) for numbers in ([0, 2048], [2048, 0], [2048, 2048]))
        operation = world.here.write_list(source.memory, target.handle, here, there, lengths, notify=7)
        for each in (here, there, lengths):
            each[:] = 1
        operation.result(PATIENCE_S)
        world.expect_notification(7, 4096)
        assert target.get(2048, 2048) + target.get(0, 2048) == pattern(1, 4096).tobytes()

    @pytest.mark.parametrize("name", ["write_list", "read_list"])
    def test_what_does_not_fit(self, world: World, name: str) -> None:
        """The caller's own mistakes are raised by the call; ranges outside of the remote memory by the Operation."""
        buffer, target = world.buffer("numpy", 100), world.target("numpy", 100)

        context: Any = world.here  # so that wrong types can be tried

        def post(here: object, there: object, lengths: object, remote: zh.RemoteBuffer = target.handle) -> Any:
            if name == "write_list":
                return context.write_list(buffer.memory, remote, here, there, lengths)
            return context.read_list(remote, buffer.memory, there, here, lengths)

        for _ in range(2):  # before there is a path, and after
            for here, length in ((-1, 1), (0, -1), (100, 1), (1, 100), (2**62, 2**62), (0, 2**63 - 1)):
                with pytest.raises(ValueError, match="not within the 100 bytes here"):
                    post([here], [0], [length])
            with pytest.raises(ValueError, match="2 offsets here, 1 there, and 1 lengths"):
                post([0, 1], [0], [1])
            with pytest.raises(ValueError, match="one-dimensional"):
                post([[0]], [0], [1])
            with pytest.raises(TypeError, match="integers"):
                post([0.5], [0], [1])
            for remote, size in ((target.handle, 100), (target.handle[10:60], 50)):
                for there, length in ((-1, 1), (size, 1), (size - 9, 10), (2**62, 1)):
                    with pytest.raises(zh.AccessDenied):
                        post([0], [there], [length], remote).result(PATIENCE_S)
                assert post([100], [size], [0], remote).result(PATIENCE_S) == 0
            assert post([], [], []).result(PATIENCE_S) == 0
        world.here.flush().result(PATIENCE_S)
        target.expect_poison()
        buffer.expect_poison()

    def test_of_a_closed_context(self, world: World) -> None:
        """Also where there is nothing to move."""
        context = zh.Context()
        context.close()
        for call in (context.read_many, context.write_many):
            with pytest.raises(zh.Closed):
                call([])

    def test_into_read_only_memory(self, world: World) -> None:
        target = world.target("numpy", 64)
        array = np.zeros(64, np.uint8)
        array.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            world.here.read_list(target.handle, array, [0], [0], [64])
        with pytest.raises(ValueError, match="read-only"):
            world.here.read_many([(target.handle, array)])
