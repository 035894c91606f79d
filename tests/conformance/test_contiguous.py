"""write and read of one range: every provider, memory, place and length, every byte and its neighbours checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.buffers import KINDS, ON_GPUS, Kind
from support.matrix import every_pair, every_target
from support.patience import PATIENCE_S
from support.sizes import ROOM, Case, cases, thorough_cases
from support.world import WORLDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.world import World

SOURCES: tuple[Kind, ...] = ("numpy", "alloc", "sim", *ON_GPUS)


def _write_all(world: World, source_kind: Kind, target_kind: Kind, planned: Iterable[Case]) -> None:
    source = world.buffer(source_kind, ROOM)
    target = world.target(target_kind, ROOM)
    for case in planned:
        source.fill(case.source, case.nbytes, case.seed)
        local = source.memory[case.source : case.source + case.nbytes]
        remote = target.handle[case.target : case.target + case.nbytes]
        assert world.here.write(local, remote, notify=case.value).result(PATIENCE_S) == case.nbytes
        if case.value is not None:
            world.expect_notification(case.value, case.nbytes)
        target.settle(case.target, case.nbytes, case.seed)
        source.settle(case.source, case.nbytes, case.seed)
    world.expect_no_notification()
    target.expect_poison()


def _read_all(world: World, into_kind: Kind, target_kind: Kind, planned: Iterable[Case]) -> None:
    into = world.buffer(into_kind, ROOM)
    target = world.target(target_kind, ROOM)
    for case in planned:
        target.fill(case.target, case.nbytes, case.seed)
        remote = target.handle[case.target : case.target + case.nbytes]
        local = into.memory[case.source : case.source + case.nbytes]
        assert world.here.read(remote, local).result(PATIENCE_S) == case.nbytes
        into.settle(case.source, case.nbytes, case.seed)
        target.settle(case.target, case.nbytes, case.seed)
    into.expect_poison()


@pytest.mark.parametrize(("world", "source_kind", "target_kind"), every_pair(SOURCES, KINDS), indirect=["world"])
class TestEveryPair:
    def test_write(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        _write_all(world, source_kind, target_kind, cases(notified=True))

    def test_read(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        _read_all(world, source_kind, target_kind, cases(notified=False))

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_write_at_every_offset(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        _write_all(world, source_kind, target_kind, thorough_cases())

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_read_at_every_offset(self, world: World, source_kind: Kind, target_kind: Kind) -> None:
        _read_all(world, source_kind, target_kind, thorough_cases())


@pytest.mark.parametrize(("world", "target_kind"), every_target(KINDS), indirect=["world"])
def test_many_in_flight(world: World, target_kind: Kind) -> None:
    """64 writes and 64 reads posted before the first is waited for, each into its own slot."""
    slots, slot = 64, 20_011
    source = world.buffer("numpy", slots * slot)
    back = world.buffer("alloc", slots * slot)
    target = world.target(target_kind, slots * slot)
    source.fill(0, slots * slot, 1)
    ranges = [slice(k * slot, (k + 1) * slot) for k in range(slots)]
    writes = [world.here.write(source.memory[r], target.handle[r]) for r in ranges]
    assert [write.result(PATIENCE_S) for write in writes] == [slot] * slots
    reads = [world.here.read(target.handle[r], back.memory[r]) for r in reversed(ranges)]
    assert [read.result(PATIENCE_S) for read in reads] == [slot] * slots
    target.expect(0, slots * slot, 1)
    back.expect(0, slots * slot, 1)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_two_devices(world: World) -> None:
    """From one sim device to the other, of this process and of the peer."""
    nbytes = 300_001
    first = world.here.alloc(nbytes, device="sim:0")
    second = world.here.alloc(nbytes, device="sim:1")
    target = world.target("sim", nbytes)
    try:
        target.fill(0, nbytes, 9)
        assert world.here.read(target.handle, second).result(PATIENCE_S) == nbytes
        assert world.here.write(second, target.handle).result(PATIENCE_S) == nbytes
        assert world.here.read(target.handle, first).result(PATIENCE_S) == nbytes
        assert first.read_bytes(0, nbytes) == second.read_bytes(0, nbytes) == target.get(0, nbytes)
        target.expect(0, nbytes, 9)
    finally:
        first.close()
        second.close()
