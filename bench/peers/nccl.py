"""Measures NCCL by torch.distributed's send and recv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from bench.peers import groups, workload
from bench.peers.tensors import TensorHalf

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.workload import Case, Pages, Side


class _Half(TensorHalf):
    """Sends on rank 0, and receives on rank 1."""

    note = "send and recv of torch.distributed: the receives are queued ahead; done is when the sender's stream is"

    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        del sources, targets
        part = self.tensor[: case.bytes]

        def send() -> None:
            dist.send(part, 1)
            self.synchronize()

        return send

    def answer(self, case: Case, count: int) -> None:
        part = self.tensor[: case.bytes]
        for _ in range(count):
            dist.recv(part, 0)
        self.synchronize()


def version() -> str:
    if not torch.cuda.is_available():
        return f"gloo of torch {torch.__version__}"
    nccl: Any = torch.cuda.nccl
    number = nccl.version()
    return f"{'.'.join(map(str, number))} (torch {torch.__version__})"


def run(side: Side) -> None:
    """Run one process's half."""
    half = _Half(side)
    side.results.send(("version", version()))
    groups.join(side, half.device)
    workload.run(half, side)
