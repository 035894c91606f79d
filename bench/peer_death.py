"""Measures how soon operations end with PeerLost when their peer is killed, by the memory that it had touched.

    python bench/peer_death.py [--touched-gib 0 1 4] [--repeat 5] [--json FILE|-]

The kernel's own signs (end of file, pidfd) come only after it has torn the process's memory down, 66 to 75 ms per GiB;
the column `pidfd_ms` is that floor, measured in the same run. The output has one row per form and amount:
`{name, form, provider, touched_bytes, pending, first_ms, last_ms, last_ms_worst, pidfd_ms, bound_ms, within_bound}`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import zerohop as zh

# The bound for two processes on one host.
BOUND_MS = 20.0
NBYTES = 4 << 20
PENDING = 32
# Name, provider, and place of the memory at the peer.
FORMS = (
    ("mapped", "shm", "host"),
    ("ring", "shm", "numpy"),
    ("staged", "shm", "sim:0"),
    ("tcp", "tcp", "numpy"),
)


def child(provider: str, where: str, touched: int) -> None:
    """Run the peer: share memory, touch much more, and wait for the end."""
    with zh.Context(providers=[provider], sim_devices=1) as context:
        memory = context.register(np.zeros(NBYTES, np.uint8)) if where == "numpy" else context.alloc(NBYTES, where)
        block = np.empty(touched, np.uint8)
        block[::4096] = 1
        print(bytes(memory.share("rw")).hex(), flush=True)
        sys.stdin.read()


def kill_once(provider: str, where: str, touched: int) -> tuple[int, float, float, float]:
    """Return the number of pending operations, and milliseconds from the kill to the first end, the last, the pidfd."""
    command = [sys.executable, __file__, "--child", provider, where, str(touched)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer,
        zh.Context(providers=[provider], sim_devices=1, timeout=60) as context,
    ):
        assert peer.stdout is not None
        handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(peer.stdout.readline().strip()))
        connection = context.connect(handle.url).result(10)
        data = np.zeros(NBYTES, np.uint8)
        context.write(data, handle).result(10)
        # Stop the peer first, so that every operation is in flight when it dies: a running peer might have answered
        # some.
        os.kill(peer.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, peer.pid, os.WSTOPPED)
        pending = [connection.recv(np.zeros(64, np.uint8)) for _ in range(PENDING)]
        descriptor = os.pidfd_open(peer.pid)
        killed = time.monotonic()
        peer.kill()
        ended = []
        for operation in pending:
            error = operation.exception(30)
            assert isinstance(error, zh.PeerLost), error
            ended.append((time.monotonic() - killed) * 1e3)
        select.select([descriptor], [], [])
        gone = (time.monotonic() - killed) * 1e3
        os.close(descriptor)
        return len(pending), ended[0], ended[-1], gone


def measure(touched_gib: list[float], repeat: int) -> list[dict[str, Any]]:
    """Return all rows, with the medians of `repeat` kills each."""
    rows = []
    for form, provider, where in FORMS:
        for gib in touched_gib:
            touched = int(gib * (1 << 30))
            runs = [kill_once(provider, where, touched) for _ in range(repeat)]
            last = [run[2] for run in runs]
            row = {
                "name": "peer_death",
                "form": form,
                "provider": provider,
                "touched_bytes": touched,
                "pending": runs[0][0],
                "first_ms": round(statistics.median(run[1] for run in runs), 3),
                "last_ms": round(statistics.median(last), 3),
                "last_ms_worst": round(max(last), 3),
                "pidfd_ms": round(statistics.median(run[3] for run in runs), 3),
                "bound_ms": BOUND_MS,
                "within_bound": max(last) <= BOUND_MS,
            }
            rows.append(row)
            print(
                f"{form:>7} {gib:4.1f} GiB touched: last of {row['pending']} after {row['last_ms']:.2f} ms "
                f"(worst {row['last_ms_worst']:.2f}), pidfd after {row['pidfd_ms']:.0f} ms",
                file=sys.stderr,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--touched-gib", type=float, nargs="+", default=[0, 1, 4])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", default="-", help="a file, or - for standard output")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child[0], given.child[1], int(given.child[2]))
        return
    rows = measure(given.touched_gib, given.repeat)
    text = json.dumps(rows, indent=2)
    if given.json == "-":
        print(text)
    else:
        Path(given.json).write_text(text + "\n", encoding="utf-8")
    if not all(row["within_bound"] for row in rows):
        sys.exit("some operations ended later than the bound")


if __name__ == "__main__":
    main()
