"""The other process dies of a signal while this one waits for it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.peers.workload import Side


def run(side: Side) -> None:
    if side.rank:
        print("bad handle", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    side.link.recv()
