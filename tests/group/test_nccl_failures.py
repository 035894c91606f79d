"""What ends collectives of `backend="nccl"`: ranks that are lost, late or call something else. Gloo stands for NCCL."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.gloo import Gloo
from support.groups import groups
from support.lanes import eventually
from support.patience import PATIENCE_S
from zerohop.group.collectives import nccl

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.group.collectives.nccl_library import Issue

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch_threads")
AFTER = "a collective of this group has failed: .*subgroup"


@pytest.mark.parametrize("count", [5, 100_000])
def test_ranks_that_disagree_on_the_backend(tmp_path: Path, gloo: Gloo, count: int) -> None:
    with groups(tmp_path, 2) as ranks:
        operations = [
            ranks[0].allreduce(torch.ones(count), backend="nccl"),
            ranks[1].allreduce(torch.ones(count)),
        ]
        for operation in operations:
            with pytest.raises(zh.ProtocolError, match=r"its backend is|longer|its call differs"):
                operation.result(PATIENCE_S)


def test_a_rank_that_does_not_come(tmp_path: Path, gloo: Gloo) -> None:
    with groups(tmp_path, 2) as ranks:
        zh.wait_all([group.barrier() for group in ranks], PATIENCE_S)
        with pytest.raises(zh.DeadlineExceeded, match="rank 1"):
            ranks[0].allreduce(torch.ones(4), backend="nccl", timeout=0.3).result(PATIENCE_S)
        with pytest.raises(zh.ZerohopError, match=AFTER):
            ranks[0].allreduce(torch.ones(4), backend="nccl").result(PATIENCE_S)


def test_two_ranks_on_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneGpu(Gloo):
        def identity(self, device: Any) -> str:
            return "GPU"

    monkeypatch.setattr(nccl, "LIBRARY", OneGpu())
    with groups(tmp_path, 2) as ranks:
        for operation in [group.allreduce(torch.ones(4), backend="nccl") for group in ranks]:
            with pytest.raises(zh.Unsupported, match=r"ranks 0 and 1 are on one GPU.*leave backend out"):
                operation.result(PATIENCE_S)


class Stuck(Gloo):
    """Works until it is aborted, after the first collective."""

    def __init__(self) -> None:
        super().__init__()
        self.working = threading.Semaphore(0)
        self.left = 0

    def carry_out(self, group: Any, issue: Issue, device: Any, stopped: threading.Event) -> None:
        if self.left > 0:
            self.left -= 1
            super().carry_out(group, issue, device, stopped)
        else:
            self.working.release()
            stopped.wait(PATIENCE_S)


def test_the_time_is_up_while_nccl_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    monkeypatch.setattr(nccl, "LIBRARY", stuck)
    with groups(tmp_path, 2) as ranks:
        operations = [group.allreduce(torch.ones(4), backend="nccl", timeout=0.5) for group in ranks]
        for operation in operations:
            with pytest.raises(zh.DeadlineExceeded, match=r"rank \d"):
                operation.result(PATIENCE_S)
        assert any("NCCL's collective" in str(operation.exception()) for operation in operations)
        eventually(lambda: not any(each.memory_in_use for each in operations), "the memory is still in use")
        eventually(lambda: stuck.aborted == 2, "not all communicators were aborted")
        for group in ranks:
            with pytest.raises(zh.ZerohopError, match=AFTER):
                group.allreduce(torch.ones(4), backend="nccl").result(PATIENCE_S)
        stuck.left = 2
        tensors = [torch.ones(4) for _ in ranks]
        others = [group.subgroup([0, 1]) for group in ranks]  # which have a communicator of their own
        operations = [group.allreduce(x, backend="nccl") for group, x in zip(others, tensors, strict=True)]
        zh.wait_all(operations, PATIENCE_S)
        assert all((x == 2).all() for x in tensors)


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_a_rank_is_lost_while_nccl_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    """The others hear of it at once, and not at the end of their time."""
    stuck = Stuck()
    monkeypatch.setattr(nccl, "LIBRARY", stuck)
    with groups(tmp_path, 3, provider) as ranks:
        operations = [group.allreduce(torch.ones(4), backend="nccl") for group in ranks]
        for _ in ranks:
            assert stuck.working.acquire(timeout=PATIENCE_S)
        began = time.monotonic()
        ranks[2].context.close()
        for operation in operations[:2]:
            with pytest.raises(zh.PeerLost, match="rank 2"):
                operation.result(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        with pytest.raises((zh.Closed, zh.PeerLost)):
            operations[2].result(PATIENCE_S)


def test_nccl_fails_in_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Stuck):
        def carry_out(self, group: Any, issue: Issue, device: Any, stopped: threading.Event) -> None:
            if device == torch.device("meta"):
                raise zh.DeviceFailed("NCCL: unhandled cuda error")
            super().carry_out(group, issue, device, stopped)

    monkeypatch.setattr(nccl, "LIBRARY", Failing())
    with groups(tmp_path, 2) as ranks:
        ranks[1]._nccl.device = None
        operations = [ranks[0].allreduce(torch.ones(4), backend="nccl")]
        whole = ranks[1]._by_nccl("nccl", x=torch.ones(4))
        assert whole is not None
        monkeypatch.setattr(ranks[1], "_by_nccl", lambda *_, **__: whole._replace(device=torch.device("meta")))
        operations.append(ranks[1].allreduce(torch.ones(4), backend="nccl"))
        with pytest.raises(zh.DeviceFailed, match="NCCL: unhandled cuda error"):
            operations[1].result(PATIENCE_S)
        with pytest.raises(zh.PeerLost, match="rank 1: it has given up"):
            operations[0].result(PATIENCE_S)


def test_a_group_that_is_closed_while_nccl_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    monkeypatch.setattr(nccl, "LIBRARY", stuck)
    with groups(tmp_path, 2) as ranks:
        operations = [group.allreduce(torch.ones(4), backend="nccl") for group in ranks]
        for _ in ranks:
            assert stuck.working.acquire(timeout=PATIENCE_S)
        ranks[0].close()
        with pytest.raises(zh.Closed):
            operations[0].result(PATIENCE_S)
        with pytest.raises(zh.PeerLost, match="rank 0"):
            operations[1].result(PATIENCE_S)
        eventually(lambda: stuck.aborted == 2, "not all communicators were aborted")


def test_a_call_is_cancelled_while_nccl_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    monkeypatch.setattr(nccl, "LIBRARY", stuck)
    with groups(tmp_path, 2) as ranks:
        operations = [group.allreduce(torch.ones(4), backend="nccl") for group in ranks]
        for _ in ranks:
            assert stuck.working.acquire(timeout=PATIENCE_S)
        assert operations[0].cancel()
        with pytest.raises(CancelledError):
            operations[0].result(PATIENCE_S)
        with pytest.raises(zh.PeerLost, match="rank 0: it has given up"):
            operations[1].result(PATIENCE_S)
        eventually(lambda: stuck.aborted == 2, "not all communicators were aborted")
