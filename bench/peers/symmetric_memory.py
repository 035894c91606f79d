"""Measures torch's symmetric memory: the peer's buffer is a tensor of this process, and the target of `copy_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from bench.peers import groups, workload
from bench.peers.tensors import TensorHalf

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.workload import Case, Pages, Side


class _Half(TensorHalf):
    """Holds memory of `symm_mem.empty`, and the peer's memory, which `rendezvous` has mapped."""

    names: ClassVar[frozenset[str]] = frozenset({"write", "read"})
    note = "copy_ into or from get_buffer() of the peer, then the stream is waited for"

    def __init__(self, side: Side) -> None:
        """Allocate, and meet the other process."""
        super().__init__(side)
        groups.join(side, self.device)
        world: Any = dist.group.WORLD
        handle = symmetric.rendezvous(self.tensor, world.group_name)
        self.remote = handle.get_buffer(1 - side.rank, (self.tensor.numel(),), torch.uint8)
        # The mapping lives as long as the handle.
        self.handle = handle

    def make(self, nbytes: int) -> torch.Tensor:
        if not self.on_gpu:
            raise RuntimeError("symmetric memory is for GPUs")
        return symmetric.empty(nbytes, dtype=torch.uint8, device=self.device)

    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        del sources, targets
        here, there = self.tensor[: case.bytes], self.remote[: case.bytes]
        source, target = (there, here) if case.name == "read" else (here, there)

        def copy() -> None:
            target.copy_(source)
            self.synchronize()

        return copy


def run(side: Side) -> None:
    """Run one process's half."""
    side.results.send(("version", f"torch {torch.__version__}"))
    workload.run(_Half(side), side)
