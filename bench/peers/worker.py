"""Runs one process of a peer: `python -m bench.peers.worker MODULE RANK LINK RESULTS`; the last two: descriptors."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from bench.peers.workload import Side

_PR_SET_PDEATHSIG = 1
_LONGEST_REASON = 300


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # this process does not outlive its parent
    module, rank, link, results = sys.argv[1], *map(int, sys.argv[2:])
    to_parent = Connection(results)
    side = Side(rank, to_parent.recv(), Connection(link), to_parent)
    try:
        importlib.import_module(module).run(side)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        traceback.print_exc()
        to_parent.send(("lost", None))  # the other process has ended: its reason is the one that counts
        return 1
    except Exception as error:  # noqa: BLE001 - every failure of a peer is a reason in the results
        traceback.print_exc()
        to_parent.send(("failed", describe(error)))
        return 1
    to_parent.send(("done", None))
    return 0


def describe(error: Exception) -> str:
    """Return one line: the type of the error, and the first and the last line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    parts = [type(error).__name__, *lines[:1]]
    text = ": ".join(parts) + (f" … {lines[-1]}" if len(lines) > 1 else "")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that crash or hang at exit must not spoil the measured results.
    os._exit(code)
