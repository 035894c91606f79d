"""Lists the peers: where each is implemented, and which environment its processes need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Peer:
    """Describes a library that moves bytes between two GPUs.

    Attributes:
        name: name in the results.
        module: module with `run(side)`.
        expandable: whether it is also measured with memory of PyTorch's expandable segments.
        environment: variables of its processes, beside the caller's.
    """

    name: str
    module: str
    expandable: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


# Makes UCX log which transport it chose for which operation.
_UCX_EXPLAINS: Final = {"UCX_PROTO_INFO": "y"}

PEERS: Final = (
    Peer("zerohop", "bench.peers.zerohop_", expandable=True),
    Peer("nccl", "bench.peers.nccl", expandable=True),
    Peer("symmetric_memory", "bench.peers.symmetric_memory"),
    Peer("ucx", "bench.peers.ucx"),
    Peer("nixl", "bench.peers.nixl", expandable=True, environment=_UCX_EXPLAINS),
)
EXPANDABLE: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
