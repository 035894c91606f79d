"""Collectives of a group: every kind, number of ranks, length, provider and type of element."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern, poison
from zerohop.group.collectives import plan, rings
from zerohop.group.collectives.plan import KINDS, algorithm_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@contextmanager
def groups(folder: Path, size: int, provider: str = "shm", timeout: float = PATIENCE_S) -> Iterator[list[zh.Group]]:
    with ExitStack() as opened:
        options = Options(providers=(provider,), sim_devices=1)
        contexts = [opened.enter_context(options.open()) for _ in range(size)]
        yield [
            opened.enter_context(zh.Group(rank, size, folder, ctx=ctx, timeout=timeout))
            for rank, ctx in enumerate(contexts)
        ]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[zh.Group]]:
    with groups(tmp_path, 2) as both:
        yield both


def in_all(ranks: list[zh.Group], call: Callable[[int, zh.Group], zh.Operation[Any]]) -> list[Any]:
    """Make a call in all ranks, and return the values."""
    return [operation.result(PATIENCE_S) for operation in [call(rank, group) for rank, group in enumerate(ranks)]]


def inputs(size: int, nbytes: int) -> list[Any]:
    return [pattern(rank + 1, nbytes) for rank in range(size)]


def test_the_sizes_are_on_both_sides_of_every_switch() -> None:
    usual = [1 << bit for bit in range(28)]
    for kind in KINDS:
        for size in RANKS:
            every = {algorithm_of(kind, nbytes + more, size) for nbytes in usual for more in (-1, 0, 1)}
            assert {algorithm_of(kind, nbytes, size) for nbytes in SIZES.get(kind, (0,))} == every, (kind, size)


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


OPERATORS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
TYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble complex64 complex128"


def numbers(rank: int, count: int, dtype: Any) -> Any:
    chosen = np.random.default_rng(rank).uniform(-2, 2, count)
    if np.dtype(dtype).kind in "iub":
        return (chosen * 60).astype(np.int64).astype(dtype)
    return (chosen + 1j * chosen[::-1] if np.dtype(dtype).kind == "c" else chosen).astype(dtype)


def reduced_alike(found: list[Any], arrays: list[Any], op: str) -> None:
    # A longdouble has bytes that belong to no number.
    bits = {
        str(each.tolist()) if each.dtype.itemsize == 16 and each.dtype.kind == "f" else each.tobytes() for each in found
    }
    assert len(bits) == 1, "the ranks have different bits"
    expected = arrays[0]
    for array in arrays[1:]:
        expected = OPERATORS[op](expected, array)
    assert found[0].dtype == expected.dtype
    if expected.dtype.kind in "iub":
        assert (found[0] == expected).all()
    else:
        kind = np.complex128 if expected.dtype.kind == "c" else np.longdouble
        limit = 0.1 if expected.dtype.itemsize == 2 else 1e-4
        assert np.allclose(found[0].astype(kind), expected.astype(kind), rtol=limit, atol=limit)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_type_and_operator(tmp_path: Path, size: int) -> None:
    types: list[Any] = [np.dtype(name) for name in TYPES.split()]
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        types.append(np.dtype(ml_dtypes.bfloat16))
    with groups(tmp_path, size) as ranks:
        for dtype in types:
            for op in OPERATORS:
                if dtype.kind == "c" and op in ("min", "max"):
                    with pytest.raises(TypeError, match="no order"):
                        ranks[0].allreduce(np.zeros(1, dtype), op)
                    continue
                for nbytes in (400, plan.DOUBLING + 1600):
                    arrays = [numbers(rank, nbytes // dtype.itemsize, dtype) for rank in range(size)]
                    outs = [np.empty_like(array) for array in arrays]
                    in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], op, out=outs[rank]))  # noqa: B023
                    reduced_alike(outs, arrays, op)


def test_special_numbers_are_the_same_in_all_ranks(tmp_path: Path) -> None:
    """NaN, infinities and zeros with signs, whose result depends on the order, and large ones that overflow."""
    special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 3e38, 1e-40], np.float32)
    with groups(tmp_path, 5) as ranks:
        for op in OPERATORS:
            for count in (64, 40_000):
                arrays = [np.random.default_rng(rank).choice(special, count) for rank in range(5)]
                in_all(ranks, lambda rank, group: group.allreduce(arrays[rank], op))  # noqa: B023
                assert len({each.tobytes() for each in arrays}) == 1


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_tensors(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype, threads = getattr(torch, name), torch.get_num_threads()
    torch.set_num_threads(1)  # or it starts threads of its own, which look like leaked ones
    with ExitStack() as opened:
        opened.callback(torch.set_num_threads, threads)
        ranks = opened.enter_context(groups(tmp_path, 3))
        for shape in ((5, 7), (70_000,)):
            tensors = [(torch.arange(np.prod(shape)).reshape(shape) % 7 + rank).to(dtype) for rank in range(3)]
            total = tensors[0] + tensors[1] + tensors[2]
            copies = [tensor.clone() for tensor in tensors]
            for value in in_all(ranks, lambda rank, group: group.allreduce(copies[rank])):  # noqa: B023
                assert torch.equal(value, total)
            outs = [torch.zeros((3, *shape), dtype=dtype) for _ in ranks]
            in_all(ranks, lambda rank, group: group.allgather(tensors[rank], outs[rank]))  # noqa: B023
            assert all(torch.equal(out, torch.stack(tensors)) for out in outs)
            parts = [torch.zeros(shape, dtype=dtype) for _ in ranks]
            in_all(ranks, lambda rank, group: group.reduce_scatter(outs[rank], parts[rank], "max"))  # noqa: B023
            assert all(torch.equal(part, tensor) for part, tensor in zip(parts, tensors, strict=True))


@pytest.mark.parametrize("size", [2, 4])
def test_memory_of_devices(tmp_path: Path, size: int) -> None:
    """What moves bytes takes any memory; ranks may have different kinds."""
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
