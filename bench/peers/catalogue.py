"""The peers: where each is implemented, and what its processes need around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Peer:
    """Something that moves bytes between two GPUs.

    Attributes:
        name: what the results call it.
        module: has `run(side)`.
        expandable: whether it is also measured with memory of PyTorch's expandable segments.
        environment: of its processes, beside the caller's.
    """

    name: str
    module: str
    expandable: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


# UCX says then, in the log, which transport it chose for what.
_UCX_EXPLAINS: Final = {"UCX_PROTO_INFO": "y"}

PEERS: Final = (
    Peer("zerohop", "bench.peers.zerohop_", expandable=True),
    Peer("nccl", "bench.peers.nccl", expandable=True),
    Peer("symmetric_memory", "bench.peers.symmetric_memory"),
    Peer("ucx", "bench.peers.ucx"),
    Peer("nixl", "bench.peers.nixl", expandable=True, environment=_UCX_EXPLAINS),
)
EXPANDABLE: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
