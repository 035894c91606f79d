"""Writes of the native data plane beside perftest's ib_write_lat and ib_write_bw, in turn, in one guest.

    python bench/lab/perftest.py [--pairs 20] [--json FILE]

Latency: half a round trip of two processes that each poll their memory for the other's write, the median of a run, as
ib_write_lat counts t_typical. Bandwidth: one process keeps the queue full, as ib_write_bw with its depth of 128.
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from pairs import ADDRESS, DEVICE, GID_INDEX, Row, arguments, compare, perf, write

# Bytes, writes of a run, and the column of perftest's answer that is its median or average.
LATENCY = ((8, 1000), (8192, 500), (65536, 100))
BANDWIDTH = ((65536, 500), (1 << 20, 50))
T_TYPICAL, BW_AVERAGE = 4, 3
# perftest's MB are MiB (2^20).
MIB = 1.048576


def listens(port: int) -> bool:
    """Looked up, not tried: perftest's server takes one connection only."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii") + Path("/proc/net/tcp6").read_text(encoding="ascii")
    return any(
        row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A" for row in rows.splitlines()[1:] if row
    )


def free_port() -> int:
    """A port that nobody listens on now; perftest takes no port 0."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def perftest(program: str, nbytes: int, count: int, column: int) -> float:
    """One run of the program against its own server: a column of its line of numbers."""
    port = free_port()
    command = [program, "-d", DEVICE, "-x", str(GID_INDEX), "-s", str(nbytes), "-n", str(count), "-F", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        deadline = time.monotonic() + 30
        while not (up := listens(port)) and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)  # nothing tells that another process listens
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
    """One run of ours."""
    command = [perf(), mode, DEVICE, str(GID_INDEX), str(nbytes), str(count)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)


def latency(nbytes: int, count: int, pairs: int) -> Row:
    """Microseconds, one way."""
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
    """MB/s, 10^6 bytes."""
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
    """All rows."""
    options = arguments(__doc__).parse_args()
    rows = [latency(*row, options.pairs) for row in LATENCY] + [bandwidth(*row, options.pairs) for row in BANDWIDTH]
    write(options.json, rows)


if __name__ == "__main__":
    main()
