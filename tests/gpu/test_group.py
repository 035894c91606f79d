"""Collectives of tensors of GPUs, by messages of ranks that share one, and by NCCL: all have what torch computes."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.buffers import GPUS
from support.groups import groups
from support.patience import PATIENCE_S, patience

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="the tensors are torch's")
pytestmark = pytest.mark.cuda
SIZES = (1, 1000, 100_001)
needs_nccl = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_nccl_available(),
    reason="this torch was built without NCCL",
)
# NCCL looks at all links of the machine when it connects.
CONNECT_S = patience(30.0)


def done(operations: list[zh.Operation[Any]]) -> list[Any]:
    """Return the values of operations of all ranks."""
    return [operation.result(PATIENCE_S) for operation in operations]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
@pytest.mark.parametrize("size", [2, 3])
def test_reductions(tmp_path: Path, dtype: str, size: int) -> None:
    kind = getattr(torch, dtype)
    with groups(tmp_path, size) as ranks:
        for count in SIZES:
            tensors = [torch.randint(1, 5, (count,), device="cuda:0").to(kind) for _ in ranks]
            for op, expected in (
                ("sum", torch.stack(tensors).sum(0).to(kind)),
                ("max", torch.stack(tensors).max(0).values),
                # torch compiles its prod() of a stack at run time, and warns if it cannot keep that.
                ("prod", functools.reduce(torch.mul, tensors)),
            ):
                outs = [torch.full((count,), 77, device="cuda:0", dtype=kind) for _ in ranks]
                done(
                    [group.allreduce(each, op, out=out) for group, each, out in zip(ranks, tensors, outs, strict=True)]
                )
                assert all(torch.equal(out, expected) for out in outs), (op, count)
            root = size - 1
            into = torch.full((count,), 77, device="cuda:0", dtype=kind)
            done(
                [
                    group.reduce(each, root, out=into if group.rank == root else None)
                    for group, each in zip(ranks, tensors, strict=True)
                ]
            )
            assert torch.equal(into, torch.stack(tensors).sum(0).to(kind))


@pytest.mark.parametrize("size", [2, 3])
def test_moves(tmp_path: Path, size: int) -> None:
    with groups(tmp_path, size) as ranks:
        for count in SIZES:
            tensors = [torch.randn(count, device="cuda:0") for _ in ranks]
            outs = [torch.full((size * count,), 7.0, device="cuda:0") for _ in ranks]
            done([group.allgather(each, out) for group, each, out in zip(ranks, tensors, outs, strict=True)])
            assert all(torch.equal(out, torch.cat(tensors)) for out in outs)
            parts = [torch.full((count,), 7.0, device="cuda:0") for _ in ranks]
            done([group.reduce_scatter(out, part) for group, out, part in zip(ranks, outs, parts, strict=True)])
            for each, part in zip(tensors, parts, strict=True):
                assert torch.allclose(part, each * size)
            done(
                [
                    group.alltoall(out, into)
                    for group, out, into in zip(ranks, outs, [o.clone() for o in outs], strict=True)
                ]
            )
            root = tensors[0].clone()
            done([group.broadcast(each, 0) for group, each in zip(ranks, tensors, strict=True)])
            assert all(torch.equal(each, root) for each in tensors)


def by_nccl(ranks: list[zh.Group], devices: list[str]) -> None:
    """Carry out every kind of collective, and compare with what torch computes on the host."""
    size = len(ranks)
    root = size - 1

    def on(rank: int, tensor: Any) -> Any:
        return tensor.clone().to(devices[rank])

    def outs(count: int, dtype: Any) -> list[Any]:
        return [on(rank, torch.full((count,), 77).to(dtype)) for rank in range(size)]

    def in_all(method: str, *arguments: list[Any], **keywords: Any) -> list[Any]:
        operations = [
            getattr(group, method)(*(each[rank] for each in arguments), backend="nccl", **keywords)
            for rank, group in enumerate(ranks)
        ]
        return [operation.result(CONNECT_S) for operation in operations]

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for count in (1, 1000, 100_001):
            given = [torch.randint(1, 4, (count * size,)).to(dtype) for _ in range(size)]
            tensors = [on(rank, each) for rank, each in enumerate(given)]
            parts = [on(rank, each[:count]) for rank, each in enumerate(given)]
            total, whole = torch.stack(given).sum(0).to(dtype), torch.cat([each[:count] for each in given])
            out = outs(count * size, dtype)
            values = in_all("allreduce", tensors, ["sum"] * size, out=None)
            assert all(value is each for value, each in zip(values, tensors, strict=True))
            assert all(torch.equal(each.cpu(), total) for each in tensors), (dtype, count)
            tensors = [on(rank, each) for rank, each in enumerate(given)]
            in_all("reduce", tensors, [root] * size, ["max"] * size)
            assert torch.equal(tensors[root].cpu(), torch.stack(given).max(0).values)
            assert all(torch.equal(tensors[rank].cpu(), given[rank]) for rank in range(root))  # as they were
            tensors[root] = on(root, given[root])
            part = outs(count, dtype)
            in_all("reduce_scatter", tensors, part)
            assert torch.equal(torch.cat([each.cpu() for each in part]), total)
            in_all("allgather", parts, out)
            assert all(torch.equal(each.cpu(), whole) for each in out)
            out = outs(count * size, dtype)
            in_all("gather", parts, out, [root] * size)
            assert torch.equal(out[root].cpu(), whole)
            assert all((each == 77).all() for each in out[:root])
            in_all("scatter", [tensors[root] if rank == root else None for rank in range(size)], part, [root] * size)
            assert torch.equal(torch.cat([each.cpu() for each in part]), given[root])
            in_all("alltoall", tensors, out)
            for rank, each in enumerate(out):
                expected = torch.cat([one[rank * count : (rank + 1) * count] for one in given])
                assert torch.equal(each.cpu(), expected)
            in_all("broadcast", tensors, [root] * size)
            assert all(torch.equal(each.cpu(), given[root]) for each in tensors)


@needs_nccl
@pytest.mark.timeout(180)
def test_nccl_of_one_rank(tmp_path: Path) -> None:
    before = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    with groups(tmp_path, 1) as ranks:
        by_nccl(ranks, ["cuda:0"])
        group, x = ranks[0], torch.ones(1000, device="cuda:0")
        operation = group.allreduce(x, backend="nccl")
        assert operation.result(PATIENCE_S) is x
        assert str(operation.explain()).startswith("nccl (communicator) cuda:0")
        explained = group.explain("allreduce", x, backend="nccl")
        assert (explained.backend, explained.reduces, explained.device) == ("nccl", "nccl on cuda:0", "cuda:0")
        assert group.explain("allreduce", x).backend == "zerohop"
        with pytest.raises(TypeError, match=r"NCCL does not reduce int16, but bool.*leave backend out"):
            group.allreduce(torch.ones(4, device="cuda:0", dtype=torch.int16), backend="nccl")
        with pytest.raises(TypeError, match=r"this one is on cpu.*pass x.cuda"):
            group.allreduce(torch.ones(4), backend="nccl")
        yes = torch.tensor([True, False], device="cuda:0")
        assert group.allreduce(yes, backend="nccl").result(PATIENCE_S).tolist() == [True, False]
    assert os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == before


@needs_nccl
@pytest.mark.timeout(180)
def test_nccl_beside_a_process_group_of_the_user(tmp_path: Path) -> None:
    """torch.distributed goes on to work, whether it was there before or is made afterwards."""
    dist = torch.distributed
    assert not dist.is_initialized()
    with groups(tmp_path, 1) as (group,):
        for value in (1.0, 2.0):
            x = torch.full((1000,), value, device="cuda:0")
            assert (group.allreduce(x, backend="nccl").result(CONNECT_S) == value).all()
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
            try:
                dist.all_reduce(x)
                assert (x == value).all()
                assert (group.allreduce(x, "max", backend="nccl").result(CONNECT_S) == value).all()
            finally:
                dist.destroy_process_group()
        x = torch.ones(1000, device="cuda:0")
        assert (group.allreduce(x, backend="nccl").result(CONNECT_S) == 1.0).all()


@needs_nccl
@pytest.mark.timeout(180)
def test_nccl_refuses_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as ranks:
        operations = [group.allreduce(torch.ones(4, device="cuda:0"), backend="nccl") for group in ranks]
        for operation in operations:
            with pytest.raises(zh.Unsupported, match=r"ranks 0 and 1 are on one GPU.*leave backend out"):
                operation.result(CONNECT_S)
        others = [group.subgroup([0, 1]) for group in ranks]
        tensors = [torch.ones(4, device="cuda:0") for _ in ranks]
        done([group.allreduce(x) for group, x in zip(others, tensors, strict=True)])
        assert all((x == 2).all() for x in tensors)


@needs_nccl
@pytest.mark.timeout(180)
@pytest.mark.skipif(GPUS < 2, reason="NCCL wants a GPU for each of two ranks")
def test_nccl_of_two_ranks(tmp_path: Path) -> None:
    with groups(tmp_path, 2) as ranks:
        by_nccl(ranks, ["cuda:0", "cuda:1"])
        with pytest.raises(ValueError, match=r"x is on cuda:1, and this group's NCCL is on cuda:0"):
            ranks[0].allreduce(torch.ones(4, device="cuda:1"), backend="nccl")
        # A sub-group has a communicator of its own.
        others = [ranks[0].subgroup([1, 0]), ranks[1].subgroup([1, 0])]
        tensors = [torch.full((1000,), rank + 1.0, device=f"cuda:{rank}") for rank in range(2)]
        operations = [group.allreduce(x, backend="nccl") for group, x in zip(others, tensors, strict=True)]
        assert all((operation.result(CONNECT_S) == 3).all() for operation in operations)


@needs_nccl
@pytest.mark.timeout(180)
@pytest.mark.skipif(GPUS < 2, reason="NCCL wants a GPU for each of two ranks")
def test_a_rank_that_calls_nccl_late(tmp_path: Path) -> None:
    """The other's time is up, which names it; nothing hangs, and a sub-group has NCCL work again."""
    with groups(tmp_path, 2) as ranks:
        tensors = [torch.ones(1000, device=f"cuda:{rank}") for rank in range(2)]
        operations = [group.allreduce(x, backend="nccl") for group, x in zip(ranks, tensors, strict=True)]
        for operation in operations:
            operation.result(CONNECT_S)
        with pytest.raises(zh.DeadlineExceeded, match="rank 1"):
            ranks[0].allreduce(tensors[0], backend="nccl", timeout=0.5).result(PATIENCE_S)
        with pytest.raises(zh.ZerohopError, match=r"has failed: .*subgroup"):
            ranks[0].allreduce(tensors[0], backend="nccl").result(PATIENCE_S)
        others = [group.subgroup([0, 1]) for group in ranks]
        operations = [group.allreduce(x, backend="nccl") for group, x in zip(others, tensors, strict=True)]
        assert all((operation.result(CONNECT_S) == 4).all() for operation in operations)
