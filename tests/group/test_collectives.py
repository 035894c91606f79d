"""Collectives of a group: every kind, number of ranks, length, provider and type of element."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.patience import PATIENCE_S, patience
from support.pattern import pattern, poison
from zerohop.group.collectives import plan, rings
from zerohop.group.collectives.plan import KINDS, algorithm_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROVIDERS = ("shm", "tcp")
RANKS = (1, 2, 3, 4, 5, 8)
# Bytes: both sides of every switch, of what waits at the receiver, and lengths that no number of ranks divides.
SIZES = {
    "broadcast": (0, 1, 8193, plan.TREE_BROADCAST, plan.TREE_BROADCAST + 1),
    "reduce": (0, 1, 777, 600_001),
    "allreduce": (0, 1, 3, 8193, plan.DOUBLING, plan.DOUBLING + 1, 1_000_001),
    "reduce_scatter": (0, 1, 777, 70_001),
    "allgather": (0, 1, plan.BRUCK // 8, plan.BRUCK // 8 + 1, plan.BRUCK // 3, plan.BRUCK // 3 + 1, 70_001),
    "gather": (0, 1, plan.TREE_PART, plan.TREE_PART + 1, 70_001),
    "scatter": (0, 1, plan.TREE_PART, plan.TREE_PART + 1, 70_001),
    "alltoall": (0, 1, 777, 70_001),
}


def in_all(ranks: list[zh.Group], call: Callable[[int, zh.Group], zh.Operation[Any]]) -> list[Any]:
    """Make a call in all ranks, and return the values."""
    return [operation.result(PATIENCE_S) for operation in [call(rank, group) for rank, group in enumerate(ranks)]]


def inputs(size: int, nbytes: int) -> list[Any]:
    return [pattern(rank + 1, nbytes) for rank in range(size)]


def test_the_sizes_are_on_both_sides_of_every_switch() -> None:
    for kind in KINDS:
        usual = [1 << bit for bit in range(28)] if kind in SIZES else [0]
        for size in RANKS:
            for shared in (False, True):
                choose = functools.partial(algorithm_of, kind, size=size, shared=shared)
                every = {choose(nbytes=nbytes + more) for nbytes in usual for more in (-1, 0, 1) if nbytes + more >= 0}
                assert {choose(nbytes=nbytes) for nbytes in SIZES.get(kind, (0,))} == every, (kind, size, shared)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("size", RANKS)
class TestEverySize:
    def test_of_one_array(self, tmp_path: Path, provider: str, size: int) -> None:
        with groups(tmp_path, size, provider) as ranks:
            in_all(ranks, lambda _, group: group.barrier())
            for number, nbytes in enumerate(SIZES["broadcast"]):
                root = (number + 1) % size
                arrays = inputs(size, nbytes)
                values = in_all(ranks, lambda rank, group: group.broadcast(arrays[rank], root))  # noqa: B023
                assert all(value is array for value, array in zip(values, arrays, strict=True))
                assert all((array == pattern(root + 1, nbytes)).all() for array in arrays)
            for number, nbytes in enumerate(SIZES["reduce"]):
                root = (number + 1) % size
                arrays, out = inputs(size, nbytes), poison(nbytes)
                total = sum(arrays[1:], start=arrays[0])
                for to in (out, None):
                    values = in_all(ranks, lambda rank, group: group.reduce(arrays[rank], root, out=to))  # noqa: B023
                    assert [value is not None for value in values] == [rank == root for rank in range(size)]
                    assert (values[root] == total).all()
                    untouched = [rank for rank in range(size) if rank != root or to is not None]
                    assert all((arrays[rank] == pattern(rank + 1, nbytes)).all() for rank in untouched)
            for nbytes in SIZES["allreduce"]:
                arrays = inputs(size, nbytes)
                outs = [poison(nbytes) for _ in arrays]
                total = sum(arrays[1:], start=arrays[0])
                in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], out=outs[rank]))  # noqa: B023
                assert all((out == total).all() for out in outs)
                assert all((array == pattern(rank + 1, nbytes)).all() for rank, array in enumerate(arrays))
                in_all(ranks, lambda rank, group: group.allreduce(arrays[rank]))  # noqa: B023
                assert all((array == total).all() for array in arrays)

    def test_of_parts(self, tmp_path: Path, provider: str, size: int) -> None:
        with groups(tmp_path, size, provider) as ranks:
            for nbytes in SIZES["reduce_scatter"]:
                arrays, outs = inputs(size, nbytes * size), [poison(nbytes) for _ in ranks]
                in_all(ranks, lambda rank, group: group.reduce_scatter(arrays[rank], outs[rank]))  # noqa: B023
                assert (np.concatenate(outs) == sum(arrays[1:], start=arrays[0])).all()
                assert all((array == pattern(rank + 1, nbytes * size)).all() for rank, array in enumerate(arrays))
            for nbytes in SIZES["allgather"]:
                arrays, outs = inputs(size, nbytes), [poison(nbytes * size) for _ in ranks]
                in_all(ranks, lambda rank, group: group.allgather(arrays[rank], outs[rank]))  # noqa: B023
                assert all((out == np.concatenate(arrays)).all() for out in outs)
            for number, nbytes in enumerate(SIZES["gather"]):
                root = (number + 1) % size
                arrays, outs = inputs(size, nbytes), [poison(nbytes * size) for _ in ranks]
                in_all(ranks, lambda rank, group: group.gather(arrays[rank], outs[rank], root))  # noqa: B023
                assert (outs.pop(root) == np.concatenate(arrays)).all()
                assert all((out == poison(nbytes * size)).all() for out in outs)
            for number, nbytes in enumerate(SIZES["scatter"]):
                root = (number + 1) % size
                whole, outs = pattern(9, nbytes * size), [poison(nbytes) for _ in ranks]
                in_all(
                    ranks,
                    lambda rank, group: group.scatter(whole if rank == root else None, outs[rank], root),  # noqa: B023
                )
                assert (np.concatenate(outs) == whole).all()
            for nbytes in SIZES["alltoall"]:
                arrays, outs = inputs(size, nbytes * size), [poison(nbytes * size) for _ in ranks]
                in_all(ranks, lambda rank, group: group.alltoall(arrays[rank], outs[rank]))  # noqa: B023
                for rank, out in enumerate(outs):
                    parts = [array[rank * nbytes : (rank + 1) * nbytes] for array in arrays]
                    assert (out == np.concatenate(parts)).all()

    def test_exchange_and_split(self, tmp_path: Path, provider: str, size: int) -> None:
        with groups(tmp_path, size, provider) as ranks:
            for each in (0, 1, 1000, 100_003):
                parts = [pattern(rank, each * (rank % 3)).tobytes() for rank in range(size)]
                values = in_all(ranks, lambda rank, group: group.exchange(parts[rank]))  # noqa: B023
                assert values == [parts] * size
            halves = in_all(ranks, lambda rank, group: group.split(rank % 2 if rank != 4 else None, -rank))
            for rank, half in enumerate(halves):
                expected = tuple(other for other in reversed(range(size)) if other != 4 and other % 2 == rank % 2)
                assert half.ranks == expected if rank != 4 else half is None
            with ExitStack() as opened:
                sums = {rank: np.array([rank]) for rank, half in enumerate(halves) if half is not None}
                operations = [opened.enter_context(halves[rank]).allreduce(sums[rank]) for rank in sums]
                for operation in operations:
                    operation.result(PATIENCE_S)
                for rank, found in sums.items():
                    assert found[0] == sum(halves[rank].ranks)
                even = [halves[rank] for rank in (0, 2, 6) if rank < size]
                inner = in_all(even, lambda _, group: group.split(0))
                assert [group.ranks for group in inner] == [halves[0].ranks] * len(even)


@pytest.mark.parametrize("size", [2, 3])
def test_long_arrays_in_pieces(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rings, "AT_ONCE", 100_000
    )  # or it would take longer arrays for pieces that are reduced in turns
    count = 500_003
    with groups(tmp_path, size) as ranks:
        arrays = [pattern(rank, count * 8).view(np.int64) for rank in range(size)]
        total, outs = sum(arrays[1:], start=arrays[0]), [np.zeros(count, np.int64) for _ in ranks]
        for out in in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], out=outs[rank])):
            assert (out == total).all()
        assert (in_all(ranks, lambda rank, group: group.reduce(arrays[rank], 1, out=outs[rank]))[1] == total).all()
        parts = [pattern(rank, count * size * 8).view(np.int64) for rank in range(size)]
        in_all(ranks, lambda rank, group: group.reduce_scatter(parts[rank], outs[rank]))
        assert (np.concatenate(outs) == sum(parts[1:], start=parts[0])).all()


@pytest.mark.parametrize("size", [2, 4])
def test_memory_of_devices(tmp_path: Path, size: int) -> None:
    """Collectives that move bytes take any memory; ranks may have different kinds."""
    places = ["sim:0" if rank % 2 == 0 else "host" for rank in range(size)]
    with groups(tmp_path, size) as ranks:
        for nbytes in (0, 1, 1000, 70_001):

            def memory(rank: int, parts: int = 1, *, filled: bool = True) -> Any:
                made = ranks[rank].context.alloc(nbytes * parts + 1, places[rank])[1:]  # noqa: B023
                made.write_bytes(0, pattern(rank + 1, made.nbytes).tobytes() if filled else b"\xa5" * made.nbytes)
                return made

            whole = [memory(rank, size) for rank in range(size)]
            one = [memory(rank) for rank in range(size)]
            data = [each.read_bytes() for each in one]
            out = [memory(rank, size, filled=False) for rank in range(size)]
            part = [memory(rank, filled=False) for rank in range(size)]
            in_all(ranks, lambda rank, group: group.allgather(one[rank], out[rank]))  # noqa: B023
            assert all(each.read_bytes() == b"".join(data) for each in out)
            in_all(ranks, lambda rank, group: group.alltoall(whole[rank], out[rank]))  # noqa: B023
            cut = [whole[rank].read_bytes() for rank in range(size)]
            for rank, each in enumerate(out):
                assert each.read_bytes() == b"".join(x[rank * nbytes : (rank + 1) * nbytes] for x in cut)
            in_all(ranks, lambda rank, group: group.scatter(whole[rank], part[rank], 1))  # noqa: B023
            assert b"".join(each.read_bytes() for each in part) == cut[1]
            in_all(ranks, lambda rank, group: group.gather(part[rank], out[rank], 0))  # noqa: B023
            assert out[0].read_bytes() == cut[1]
            in_all(ranks, lambda rank, group: group.broadcast(whole[rank], 0))  # noqa: B023
            assert all(each.read_bytes() == cut[0] for each in whole)
        with pytest.raises(TypeError, match="no type"):
            ranks[0].allreduce(ranks[0].context.alloc(8))


def test_random_programs(tmp_path: Path) -> None:
    """Many collectives that are called before the first one has ended, each rank in a thread of its own."""
    chance = random.Random(1)
    steps = [
        (chance.choice(("allreduce", "broadcast", "barrier")), chance.choice((1, 5000, 100_000))) for _ in range(60)
    ]
    with groups(tmp_path, 3) as ranks:
        kept: list[list[Any]] = [[], [], []]

        def run(rank: int) -> None:
            operations: list[zh.Operation[Any]] = []
            for kind, nbytes in steps:
                array = pattern(rank + nbytes, nbytes)
                kept[rank].append(array)
                call: Any = getattr(ranks[rank], kind)
                operations.append(call() if kind == "barrier" else call(array))
            for operation in operations:
                operation.result(PATIENCE_S)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, (kind, nbytes) in enumerate(steps):
            starts = [pattern(rank + nbytes, nbytes) for rank in range(3)]
            for rank in range(3):
                changed = {"allreduce": starts[0] + starts[1] + starts[2], "broadcast": starts[0]}
                assert (kept[rank][number] == changed.get(kind, starts[rank])).all(), (number, kind, nbytes)


def test_awaited_on_event_loops(two: list[zh.Group]) -> None:
    async def run(group: zh.Group) -> list[Any]:
        array = np.full(50_000, group.rank + 1)
        await group.barrier()
        return [await group.exchange(b"x" * group.rank), (await group.allreduce(array))[0], await group.split(None)]

    async def both() -> list[Any]:
        return list(await asyncio.gather(*[run(group) for group in two]))

    assert asyncio.run(both()) == [[[b"", b"x"], 3, None]] * 2


def test_two_threads_of_a_rank_are_in_the_order_of_calls(two: list[zh.Group]) -> None:
    """The second call waits for the first, which waits for the other rank."""
    arrays = [np.full(9, 1.0), np.full(9, 10.0)]
    operations: list[zh.Operation[Any]] = []
    for array in arrays:
        thread = threading.Thread(target=lambda array: operations.append(two[0].allreduce(array)), args=(array,))
        thread.start()
        thread.join()
    assert not any(operation.done() for operation in operations)
    others = [np.full(9, 2.0), np.full(9, 20.0)]
    for array in others:
        two[1].allreduce(array).result(PATIENCE_S)
    for operation in operations:
        operation.result(PATIENCE_S)
    assert [array[0] for array in arrays + others] == [3.0, 30.0, 3.0, 30.0]


def test_one_whose_turn_does_not_come_in_time(two: list[zh.Group]) -> None:
    first = two[0].barrier()
    with pytest.raises(zh.DeadlineExceeded, match="barrier: an earlier collective of this group has not ended"):
        two[0].barrier(timeout=0.1).result(PATIENCE_S)
    for operation in (two[1].barrier(), first):
        operation.result(PATIENCE_S)
    with pytest.raises(zh.PeerLost, match="rank 0: it has given up the collective"):
        two[1].barrier().result(PATIENCE_S)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_does_not_wait_for_room(tmp_path: Path, provider: str) -> None:
    """256 messages that the other rank has not received leave no room for those of collectives."""
    with groups(tmp_path, 2, provider) as two:
        in_all(two, lambda _, group: group.barrier())
        into, others = np.zeros(1), [group.subgroup([0, 1]) for group in two]
        zh.wait_all([two[0].send(into, 1) for _ in range(256)], PATIENCE_S)
        late, waiting = two[0].barrier(timeout=patience(0.3)), [group.barrier() for group in others]
        assert not late.done()
        with pytest.raises(zh.DeadlineExceeded, match="rank 1 has messages of this rank that it has not received"):
            late.result(PATIENCE_S)
        zh.wait_all([two[1].recv(into) for _ in range(256)], PATIENCE_S)
        zh.wait_all(waiting, PATIENCE_S)


def test_a_split_group_is_not_taken_for_a_subgroup(two: list[zh.Group]) -> None:
    """Each rank makes both, of the same ranks and in another order: only those of one kind belong together."""
    split = two[0].split(0)
    subgroups = [two[0].subgroup([0, 1])]
    splits: list[Any] = [each.result(PATIENCE_S) for each in (two[1].split(0), split)][::-1]
    subgroups.append(two[1].subgroup([0, 1]))
    found: list[Any] = [np.zeros(1, np.int64) for _ in range(2)]
    receives = [group.recv(into) for group, into in zip((splits[1], subgroups[1]), found, strict=True)]
    for group, number in ((subgroups[0], 2), (splits[0], 1)):
        group.send(np.array([number]), 1).result(PATIENCE_S)
    for receive in receives:
        receive.result(PATIENCE_S)
    assert [int(each[0]) for each in found] == [1, 2]
