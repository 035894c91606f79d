"""`backend="nccl"` without a GPU: its steps, agreement and failures, with gloo of torch in place of NCCL."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.gloo import Gloo
from support.groups import groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from zerohop.group.collectives import nccl
from zerohop.group.collectives.nccl_library import NcclLibrary, why_not_available

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import zerohop as zh

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch_threads")


def by_nccl(method: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(method, backend="nccl")


def use(monkeypatch: pytest.MonkeyPatch, library: NcclLibrary) -> None:
    monkeypatch.setattr(nccl, "LIBRARY", library)


def done(operations: list[zh.Operation[Any]]) -> list[Any]:
    """Return the values of operations of all ranks."""
    return [operation.result(PATIENCE_S) for operation in operations]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_kind(tmp_path: Path, gloo: Gloo, size: int) -> None:
    root = size - 1
    with groups(tmp_path, size) as ranks:
        for count in (5, 0, 20_000):
            given = [torch.arange(count * size, dtype=torch.float32) * (rank + 1) for rank in range(size)]
            parts = [each[:count].clone() for each in given]
            total, whole = torch.stack(given).sum(0), torch.cat(parts)

            def outs(elements: int) -> list[Any]:
                return [torch.full((elements,), -1.0) for _ in range(size)]

            def in_all(call: Callable[[int, zh.Group], Any], ranks: list[zh.Group] = ranks) -> list[Any]:
                return done([call(rank, group) for rank, group in enumerate(ranks)])

            out = outs(count * size)
            values = in_all(lambda rank, g: by_nccl(g.allreduce)(given[rank], out=out[rank]))  # noqa: B023
            assert all(value is into and torch.equal(into, total) for value, into in zip(values, out, strict=True))
            part = outs(count)
            in_all(lambda rank, g: by_nccl(g.reduce_scatter)(given[rank], part[rank]))  # noqa: B023
            assert torch.equal(torch.cat(part), total)
            out = outs(count * size)
            in_all(lambda rank, g: by_nccl(g.allgather)(parts[rank], out[rank]))  # noqa: B023
            assert all(torch.equal(each, whole) for each in out)
            out = outs(count * size)
            in_all(lambda rank, g: by_nccl(g.gather)(parts[rank], out[rank], root))  # noqa: B023
            assert torch.equal(out.pop(root), whole)
            assert all((each == -1).all() for each in out)
            part = outs(count)
            in_all(lambda rank, g: by_nccl(g.scatter)(given[root] if rank == root else None, part[rank], root))  # noqa: B023
            assert torch.equal(torch.cat(part), given[root])
            out = outs(count * size)
            in_all(lambda rank, g: by_nccl(g.alltoall)(given[rank], out[rank]))  # noqa: B023
            for rank, each in enumerate(out):
                assert torch.equal(each, torch.cat([one[rank * count : (rank + 1) * count] for one in given]))
            into = torch.full((count * size,), -1.0)
            values = in_all(lambda rank, g: by_nccl(g.reduce)(given[rank].clone(), root, "max", out=into))  # noqa: B023
            assert [value is not None for value in values] == [rank == root for rank in range(size)]
            assert torch.equal(into, torch.stack(given).max(0).values)
            same = [each.clone() for each in given]
            in_all(lambda rank, g: by_nccl(g.broadcast)(same[rank], root))  # noqa: B023
            assert all(torch.equal(each, given[root]) for each in same)
            in_all(lambda rank, g: by_nccl(g.allreduce)(same[rank], "prod"))  # noqa: B023
            assert all(torch.equal(each, given[root] ** size) for each in same)
    eventually(lambda: gloo.aborted == size, "not all communicators were given back")  # close() gives them back


class Meeting(Gloo):
    """Uses the store as ProcessGroupNCCL does: few ranks set a key each, all get them, and then wait for each other."""

    def __init__(self, size: int, roots: int) -> None:
        super().__init__()
        self._all_here = threading.Barrier(size)
        self._keys = [f"UniqueNCCLID:{number}" for number in range(roots)]

    def open(self, store: Any, rank: int, size: int, device: Any) -> Any:
        if rank < len(self._keys):
            store.set(self._keys[rank], bytes([rank]) * 128)
        assert store.multi_get(self._keys) == [bytes([root]) * 128 for root in range(len(self._keys))]
        self._all_here.wait(PATIENCE_S)
        return super().open(torch.distributed.HashStore(), 0, 1, device)


@pytest.mark.parametrize("roots", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_that_wait_for_each_other_while_they_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, roots: int
) -> None:
    use(monkeypatch, Meeting(size, roots))
    with groups(tmp_path, size) as ranks:
        for _ in range(2):
            done([group.allreduce(torch.ones(4), backend="nccl") for group in ranks])


def test_the_order_of_calls(tmp_path: Path, gloo: Gloo) -> None:
    """Those of both backends begin in the order in which they are called."""
    with groups(tmp_path, 2) as ranks:
        tensors = [torch.ones(1000) * (rank + 1) for rank in range(2)]
        operations: list[zh.Operation[Any]] = []
        for number in range(10):
            for group, x in zip(ranks, tensors, strict=True):
                operations.append(group.allreduce(x, backend="nccl") if number % 2 else group.allreduce(x))
        done(operations)
        assert all((x == 3 * 2.0**9).all() for x in tensors)


def test_what_is_refused(two: list[zh.Group]) -> None:
    """The texts say what to type, and nothing was sent."""
    group = two[0]
    with pytest.raises(TypeError, match=r"takes CUDA tensors of torch, not numpy arrays\. Fix: leave backend out"):
        group.allreduce(np.ones(4), backend="nccl")
    with pytest.raises(TypeError, match=r"this one is on cpu. Fix: leave backend out, or pass x.cuda\(\)"):
        group.broadcast(torch.ones(4), backend="nccl")
    with pytest.raises(TypeError, match=r"out: .*pass out.cuda\(\)"):
        group.scatter(None, torch.ones(4), 1, backend="nccl")
    with pytest.raises(ValueError, match=r"backend is .*, not 'gloo'"):
        group.allgather(torch.ones(4), torch.ones(8), backend="gloo")
    if not torch.distributed.is_nccl_available():
        assert why_not_available() == "this torch was built without NCCL"
    done([group.barrier() for group in two])


def test_types_that_nccl_lacks(tmp_path: Path, gloo: Gloo) -> None:
    with groups(tmp_path, 1) as (group,):
        for dtype in ("int16", "complex64"):
            x = torch.ones(4, dtype=getattr(torch, dtype))
            with pytest.raises(TypeError, match=f"NCCL does not reduce {dtype}, but bool.*Fix: leave backend out"):
                group.allreduce(x, backend="nccl")
            assert group.broadcast(x, backend="nccl").result(PATIENCE_S) is x  # bytes are bytes


def test_torch_distributed_stays_the_users(tmp_path: Path, gloo: Gloo) -> None:
    with groups(tmp_path, 1) as (group,):
        group.allreduce(torch.ones(4), backend="nccl").result(PATIENCE_S)
        assert not torch.distributed.is_initialized()


def test_every_type(tmp_path: Path, gloo: Gloo) -> None:
    with groups(tmp_path, 2) as ranks:
        for dtype in ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"):
            tensors = [torch.full((10, 10), rank + 1).to(getattr(torch, dtype)) for rank in range(2)]
            done([group.allreduce(x, backend="nccl") for group, x in zip(ranks, tensors, strict=True)])
            assert all((x == 3).all() for x in tensors), dtype
