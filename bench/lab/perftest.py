"""Compares writes of the native data plane with perftest's ib_write_lat and ib_write_bw, in turn, in one guest.

    python bench/lab/perftest.py [--pairs 20] [--json FILE]

Latency: half a round trip between two processes that each poll their memory for the other's write; the median of a
run, as ib_write_lat computes t_typical. Bandwidth: one process keeps the queue full, like ib_write_bw at depth 128.
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from pairs import ADDRESS, DEVICE, GID_INDEX, Row, arguments, compare, perf, write

# Bytes, and writes of a run. Then the columns of perftest's output with its median and its average.
LATENCY = ((8, 1000), (8192, 500), (65536, 100))
BANDWIDTH = ((65536, 500), (1 << 20, 50))
T_TYPICAL, BW_AVERAGE = 4, 3
# perftest's MB are MiB (2^20).
MIB = 1.048576


def listens(port: int) -> bool:
    """Tell whether a process listens on the port; without a connection, as perftest's server takes only one."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii") + Path("/proc/net/tcp6").read_text(encoding="ascii")
    return any(
        row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows.splitlines()[1:] if row
    )


def free_port() -> int:
    """Return a port that nobody listens on now; perftest takes no port 0."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def perftest(program: str, nbytes: int, count: int, column: int) -> float:
    """Run a program against its own server; return a column of its line of numbers."""
    port = free_port()
    command = [program, "-d", DEVICE, "-x", str(GID_INDEX), "-s", str(nbytes), "-n", str(count), "-F", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        deadline = time.monotonic() + 30
        while not (up := listens(port)) and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)  # there is no signal that another process listens
        if not up:
            server.kill()
            raise RuntimeError(f"{program} did not start: {server.communicate()[1][-300:]}")
        answer = subprocess.run([*command, ADDRESS], capture_output=True, text=True, timeout=120, check=True).stdout
        server.communicate(timeout=60)
    for line in answer.splitlines():
        words = line.split()
        if words[:1] == [str(nbytes)]:
            return float(words[column])
    raise RuntimeError(f"{program} printed no numbers: {answer[-300:]}")


def native(mode: str, nbytes: int, count: int) -> float:
    """Run zerohop's native program once."""
    command = [perf(), mode, DEVICE, str(GID_INDEX), str(nbytes), str(count)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)


def latency(nbytes: int, count: int, pairs: int) -> Row:
    """Compare the latency: microseconds, one way."""
    return compare(
        f"write {nbytes} B, one way, to ib_write_lat",
        "us",
        lambda: native("lat", nbytes, count),
        lambda: perftest("ib_write_lat", nbytes, count, T_TYPICAL),
        target=1.15,
        smaller=True,
        pairs=pairs,
    )


def bandwidth(nbytes: int, count: int, pairs: int) -> Row:
    """Compare the bandwidth: MB/s, 10^6 bytes."""
    return compare(
        f"write {nbytes} B, queued, to ib_write_bw",
        "MB/s",
        lambda: native("bw", nbytes, count),
        lambda: perftest("ib_write_bw", nbytes, count, BW_AVERAGE) * MIB,
        target=0.93,
        smaller=False,
        pairs=pairs,
    )


def main() -> None:
    """Measure, and print all rows."""
    options = arguments(__doc__).parse_args()
    rows = [latency(*row, options.pairs) for row in LATENCY] + [bandwidth(*row, options.pairs) for row in BANDWIDTH]
    write(options.json, rows)


if __name__ == "__main__":
    main()
