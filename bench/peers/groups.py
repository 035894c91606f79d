"""Makes the process group of torch.distributed that two of the peers need."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed

if TYPE_CHECKING:
    from bench.peers.workload import Side

_TIMEOUT = timedelta(seconds=60)


def join(side: Side, device: torch.device) -> None:
    """Make the default group of both processes: nccl for GPUs, else gloo."""
    dist: Any = torch.distributed
    if side.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
        side.link.send(store.port)
    else:
        store = dist.TCPStore("127.0.0.1", side.link.recv(), 2, is_master=False, timeout=_TIMEOUT)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=side.rank,
        world_size=2,
        timeout=_TIMEOUT,
        device_id=device if on_gpu else None,
    )
