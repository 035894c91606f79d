"""`Group.explain`, which says how a collective is carried out, and `explain()` of those that NCCL carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.groups import groups
from support.patience import PATIENCE_S
from zerohop.group.collectives import nccl, plan
from zerohop.group.collectives.plan import KINDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_what_it_says(tmp_path: Path, provider: str) -> None:
    with groups(tmp_path, 3, provider) as ranks:
        group = ranks[0]
        small, large = np.ones(100), np.ones(3_000_000)
        assert str(group.explain("allreduce", small)) == (
            "allreduce by zerohop: doubling, 800 bytes on host, numpy reduces, not connected yet: ranks 1, 2"
        )
        for operation in [each.barrier() for each in ranks]:
            operation.result(PATIENCE_S)
        over = f"messages go over {provider} to ranks 1, 2"
        algorithm = "shared memory" if provider == "shm" else "dissemination"
        assert str(group.explain("barrier")) == f"barrier by zerohop: {algorithm}, {over}"
        assert str(group.explain("allreduce", large, "max")) == (
            f"allreduce by zerohop: ring in 8 pieces a block, 24000000 bytes on host, numpy reduces, {over}"
        )
        explained = group.explain("alltoall", large)
        assert explained.over == ((1, provider), (2, provider))
        assert (explained.kind, explained.backend, explained.algorithm) == ("alltoall", "zerohop", "pairwise")
        assert (explained.pieces, explained.reduces, explained.device) == (1, "", "host")
        assert explained.nbytes == large.nbytes
        with group.subgroup([0]) as alone:
            assert str(alone.explain("reduce", small)) == "reduce by zerohop: copy, 800 bytes on host"


def test_every_kind_is_explained_as_it_is_planned(two: list[zh.Group]) -> None:
    for kind in KINDS:
        x = None if kind in ("barrier", "exchange", "split") else np.ones(200_000)
        each = 0 if x is None else x.nbytes // (2 if kind in ("reduce_scatter", "scatter", "alltoall") else 1)
        explained = two[0].explain(kind, x)
        assert explained.algorithm == plan.algorithm_of(kind, each, 2)
        assert bool(explained.reduces) == (kind in ("reduce", "allreduce", "reduce_scatter"))


WRONG: list[tuple[tuple[Any, ...], dict[str, str], type[Exception], str]] = [
    (("sum",), {}, ValueError, r"kind is the name of a collective \(barrier, .*\), not 'sum'"),
    (("allreduce",), {}, ValueError, "pass the x"),
    (("allreduce", np.ones(3), "mean"), {}, ValueError, "op is"),
    (("alltoall", np.ones(3, np.uint8)), {}, ValueError, "no 2 parts"),
    (("allreduce", np.zeros(4, "O")), {}, TypeError, "object"),
    (("barrier",), {"backend": "nccl"}, ValueError, "barrier has no backend 'nccl'. Fix: leave backend out"),
    (("allreduce", np.ones(3)), {"backend": "gloo"}, ValueError, 'backend is "zerohop" or "nccl"'),
    (("allreduce", np.ones(3)), {"backend": "nccl"}, TypeError, "takes CUDA tensors"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(two: list[zh.Group], number: int) -> None:
    arguments, keywords, error, text = WRONG[number]
    with pytest.raises(error, match=text):
        two[0].explain(*arguments, **keywords)


def test_a_closed_group(two: list[zh.Group]) -> None:
    two[0].close()
    with pytest.raises(zh.Closed):
        two[0].explain("barrier")


def test_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from support.gloo import Gloo

    monkeypatch.setattr(nccl, "LIBRARY", Gloo())
    with groups(tmp_path, 1) as (group,):
        x = torch.ones(1000)
        explained = group.explain("allreduce", x, backend="nccl")
        assert str(explained) == (
            "allreduce by nccl: NCCL chooses the algorithm, 4000 bytes on cpu, nccl on cpu reduces"
        )
        assert group.explain("broadcast", x, backend="nccl").reduces == ""
        with pytest.raises(TypeError, match="NCCL does not reduce int16"):
            group.explain("allreduce", torch.ones(3, dtype=torch.int16), backend="nccl")
        operation = group.allreduce(x, backend="nccl")
        operation.result(PATIENCE_S)
        assert operation.explain().provider == "nccl"
        assert str(operation.explain()).startswith("nccl (communicator) cpu→cpu direct, 3.9 KiB in ")
