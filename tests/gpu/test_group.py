"""Collectives of tensors of a GPU, between ranks that share it: what torch computes, every rank has."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from support.groups import groups
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    import zerohop as zh

torch = pytest.importorskip("torch", reason="the tensors are torch's")
pytestmark = pytest.mark.cuda
SIZES = (1, 1000, 100_001)


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
