"""Measures many connections to one Context over verbs: the memory that each takes, and the time to set it up.

    python bench/lab/connections.py [--count 1000] [--json FILE]

The clients are Contexts of four other processes, each connected once and used once. Memory is measured in the listening
process only: resident pages, and the queues that the device shares with it. Set-up is linear if each of the last tenth
of the connections takes no longer than each of the first.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from pairs import DEVICE

import zerohop as zh

PROCESSES = 4
NBYTES = 4096
MEMORY_TARGET = 1 << 20
# Largest ratio of the last connections' time to that of the first.
LINEAR_TARGET = 1.5


def open_context() -> zh.Context:
    """Open a Context, for either side."""
    return zh.Context(providers=["verbs"], nics=[DEVICE], timeout=120)


def client() -> None:
    """Open, connect and use one more Context for each line of input; print the milliseconds of `connect`."""
    contexts = []
    handle = zh.RemoteBuffer.from_bytes(bytes.fromhex(sys.stdin.readline()))
    for _ in sys.stdin:
        context = open_context()
        contexts.append(context)
        began = time.perf_counter()
        context.connect(handle.url).result(120)
        took = time.perf_counter() - began
        context.write(np.full(NBYTES, 3, np.uint8), handle).result(120)
        print(f"{took * 1e3:.2f}", flush=True)
    # To close all of them at once would take too long; the system closes them at the end of the process.


def used() -> int:
    """Return the bytes of this process: resident, and in queues that are shared with a device."""
    resident = queues = 0
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            device = "infiniband" in line
            if device:
                first, last = line.split()[0].split("-")
                queues += int(last, 16) - int(first, 16)
        elif line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident + queues


def main() -> None:
    """Measure, and print one row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="connections (default: 1000)")
    parser.add_argument("--json", metavar="FILE", help="write the row there")
    options = parser.parse_args()
    with open_context() as context:
        target = np.zeros(NBYTES, np.uint8)
        handle = bytes(context.register(target).share("rw")).hex()
        command = [sys.executable, __file__, "--client"]
        clients = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]

        def one_more(number: int) -> float:
            peer = clients[number % PROCESSES]
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write("more\n")
            peer.stdin.flush()
            return float(peer.stdout.readline())

        for peer in clients:
            assert peer.stdin is not None
            peer.stdin.write(handle + "\n")
        for number in range(PROCESSES):  # each process's first connection also does work that it does only once
            one_more(number)
        before = used()
        times = []
        for number in range(options.count):
            times.append(one_more(number))
            if (number + 1) % max(1, options.count // 10) == 0:
                print(f"  {number + 1}: {statistics.median(times[-options.count // 10 :]):.0f} ms each", flush=True)
        each = (used() - before) / options.count
        assert len(list(context.connections)) == options.count + PROCESSES
        assert (target == 3).all()
        tenth = max(1, options.count // 10)
        first, last = statistics.median(times[:tenth]), statistics.median(times[-tenth:])
        for peer in clients:
            peer.kill()
        for peer in clients:
            peer.wait()
    linear = last / first
    verdict = "holds" if each <= MEMORY_TARGET and linear <= LINEAR_TARGET else "MISSED"
    print(
        f"{options.count} connections: {each / 1024:.0f} KiB each, target <= {MEMORY_TARGET >> 10}; set-up "
        f"{first:.0f} ms at first, {last:.0f} ms at last, ratio {linear:.2f}, target <= {LINEAR_TARGET}: {verdict}"
    )
    if options.json:
        row = {
            "name": f"{options.count} connections",
            "bytes_each": each,
            "bytes_target": MEMORY_TARGET,
            "first_ms": first,
            "last_ms": last,
            "linear": linear,
            "linear_target": LINEAR_TARGET,
        }
        Path(options.json).write_text(json.dumps([row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        client()
    else:
        main()
