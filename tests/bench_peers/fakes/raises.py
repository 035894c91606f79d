"""Cannot start, for a reason of two lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.peers.workload import Side


def run(side: Side) -> None:
    if side.rank:
        side.link.recv()
    raise RuntimeError("the plugin does not load\nno such library")
