"""Stands in for NCCL where there is no GPU: gloo of torch, with the same kind of process group, Work and store."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from zerohop.group.collectives.nccl_library import NcclLibrary, issue_and_wait

if TYPE_CHECKING:
    import threading

    from zerohop.group.collectives.nccl_library import Issue

torch = pytest.importorskip("torch")
dist = torch.distributed
LIMIT_S = 10.0


class _Waited:
    """Is complete once it was waited for: gloo's work for reduce_scatter only ends in wait()."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def is_completed(self) -> bool:
        self._work.wait()
        return True

    def wait(self) -> None:
        self._work.wait()


class Gloo(NcclLibrary):
    """Makes and uses process groups of gloo, and counts those that were aborted."""

    def __init__(self) -> None:
        self._ranks = itertools.count()
        self.aborted = 0

    def check(self, name: str, x: Any) -> None:
        pass

    def identity(self, device: Any) -> str:
        return f"GPU {next(self._ranks)}"

    def open(self, store: Any, rank: int, size: int, device: Any) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, dt.timedelta(seconds=LIMIT_S))

    def carry_out(self, group: Any, issue: Issue, device: Any, stopped: threading.Event) -> None:
        issue_and_wait(group, lambda group: _Waited(issue(group)), stopped)

    def abort(self, group: Any) -> None:
        self.aborted += 1
        super().abort(group)


def warm_up() -> None:
    """Let torch start the threads that it keeps, for long tensors and for gloo."""
    torch.ones(1_000_000).add_(1)
    library = Gloo()
    group = library.open(dist.HashStore(), 0, 1, None)
    group.allreduce([torch.ones(1_000_000)]).wait()
    library.abort(group)
