"""Declares a half whose memory is a torch tensor on a GPU; on the host, to try the program without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from bench.peers.workload import Half

if TYPE_CHECKING:
    from bench.peers.workload import Octets, Side


class TensorHalf(Half):
    """Holds memory of `side.memory_bytes` on `side.device`."""

    def __init__(self, side: Side) -> None:
        """Raise RuntimeError if torch has no such device."""
        self.device = torch.device(side.device)
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu:
            there = torch.cuda.device_count()
            if not torch.cuda.is_available() or (self.device.index or 0) >= there:
                raise RuntimeError(f"torch {torch.__version__} sees {there} GPUs: there is no {side.device}")
            torch.cuda.set_device(self.device)
        self.tensor: Any = self.make(side.memory_bytes)

    def make(self, nbytes: int) -> torch.Tensor:
        """Allocate the memory; a peer that has its own allocator overrides this."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def synchronize(self) -> None:
        """Wait for the work that torch has queued on its current stream."""
        if self.on_gpu:
            torch.cuda.current_stream(self.device).synchronize()

    def put(self, data: Octets) -> None:
        """Fill the memory, as declared in Half."""
        self.tensor[: data.size].copy_(torch.from_numpy(data))
        self.synchronize()

    def holds(self, data: Octets) -> bool:
        """Tell whether the memory holds these bytes, as declared in Half; compares on the memory's device."""
        same: bool = torch.equal(self.tensor[: data.size], torch.from_numpy(data).to(self.device))
        return same
