"""Measures UCX by its own benchmark, `ucx_perftest` of the wheel libucx-cu13: put, from the client to the server.

The tool measures by itself and compares no bytes. One client for each kind of test reads all sizes, several times,
from a file; the server must read the same file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.peers.workload import Case, Side, Spec

_WHEELS: Final = ("libucx-cu13", "libucx-cu12")
_BYTES_OF_ONE_TEST: Final = 2 << 30
_MOST: Final = 2000
_FEWEST: Final = 8
# The server's message that it listens stays in a buffer until it ends, so the client tries until it is accepted.
_REFUSED: Final = "Connection refused"
_ATTEMPTS: Final = 100
_PAUSE: Final = 0.1

# Columns of its CSV: the test's name, iterations, 50th percentile, average since the last line, average over all, ...
_MEDIAN: Final = 2
_MEAN: Final = 4


class Test(NamedTuple):
    """Describes one kind of test: the row's name, the arguments, the output's column with its time, and its meaning."""

    row: str
    arguments: tuple[str, ...]
    column: int
    note: str


TESTS: Final = (
    Test("write", ("-t", "ucp_put_bw", "-O", "1"), _MEDIAN, "ucp_put_bw with one put at a time"),
    # Most puts of a window are posted at once, so that the median of the times between them means nothing.
    Test("write_stream", ("-t", "ucp_put_bw", "-O", "32"), _MEAN, "ucp_put_bw, 32 puts in flight: the time for each"),
    Test("write_latency", ("-t", "ucp_put_lat"), _MEDIAN, "ucp_put_lat: half a round trip, both sides polling"),
)


class Tool:
    """Holds the binary, and the environment in which it finds its libraries."""

    def __init__(self) -> None:
        """Raise FileNotFoundError if there is no wheel, or no binary in it."""
        spec = importlib.util.find_spec("libucx")
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"the package libucx is not installed: pip install {_WHEELS[0]}")
        folder = Path(next(iter(spec.submodule_search_locations)))
        self.binary = folder / "bin" / "ucx_perftest"
        if not self.binary.exists():
            raise FileNotFoundError(f"the wheel has no bin/ucx_perftest: {folder}")
        if not os.access(self.binary, os.X_OK):
            self.binary.chmod(0o755)  # for installers that drop the bit
        paths = [str(folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.environment = {"LD_LIBRARY_PATH": os.pathsep.join(paths)}

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start the binary; its stdout carries all of its output."""
        return subprocess.Popen(
            [str(self.binary), *arguments],
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def version() -> str:
    for wheel in _WHEELS:
        try:
            return importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def environment_of(spec: Spec) -> dict[str, str]:
    """Return the environment of both processes: the GPU of each, and UCX's report of the transports that it used.

    The server takes the first GPU that it sees, and the client, which writes, the second.
    """
    found = {"UCX_PROTO_INFO": "used"}
    if all(device.startswith("cuda") for device in spec.devices):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else []
        indices = [int(device.partition(":")[2] or 0) for device in reversed(spec.devices)]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(
            names[index] if names else str(index) for index in dict.fromkeys(indices)
        )
        # Without a NIC there are no other transports; they are named so that none replaces a cuda_ipc that does not
        # work.
        found["UCX_TLS"] = os.environ.get("UCX_TLS", "cuda_ipc,cuda_copy,tcp,sm,self")
    return found


def plan(spec: Spec) -> dict[str, Case]:
    """Return the tests of one client, by their names in the batch file."""
    writes = [case for case in spec.cases if case.name == "write" and not case.memory]
    return {f"r{number}b{case.bytes}": case for number in range(spec.effort.rounds) for case in writes}


def batch_file(tests: Mapping[str, Case]) -> str:
    """Return the content of the file for `-b`."""
    lines = []
    for name, case in tests.items():
        count = max(_FEWEST, min(_MOST, _BYTES_OF_ONE_TEST // case.bytes))
        lines.append(f"{name} -s {case.bytes} -n {count} -w {max(2, count // 10)}\n")
    return "".join(lines)


def parse(lines: Iterable[str], tests: Mapping[str, Case], column: int) -> tuple[dict[Case, list[float]], list[str]]:
    """Parse a client's output: the times of every case in seconds, and the transports that it used."""
    taken: dict[Case, list[float]] = {}
    transports: dict[str, None] = {}
    for line in lines:
        values = line.strip().split(",")
        if len(values) > column and values[0] in tests:
            taken.setdefault(tests[values[0]], []).append(float(values[column]) * 1e-6)
        used = re.search(r"\|\s*([1-9]\d*)\s*\|[^|]*\|[^|]*\|\s*([^|]*?)\s*\|", line)
        if used and "/" in used[2]:
            transports[used[2]] = None
    return taken, list(transports)


def run(side: Side) -> None:
    """Run one process's half: the servers on rank 1, the clients on rank 0."""
    tool = Tool()
    side.results.send(("version", version()))
    memory = "cuda" if side.device.startswith("cuda") else "host"
    tests = plan(side.spec)
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder) / "batch"
        batch.write_text(batch_file(tests), encoding="utf-8")
        for test in TESTS:
            arguments = [*test.arguments, "-m", memory, "-b", str(batch), "-f", "-v"]
            if side.rank:
                _serve(side, tool, arguments)
            else:
                _measure(side, tool, arguments, test, tests)


def _serve(side: Side, tool: Tool, arguments: Sequence[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = tool.start([*arguments, "-p", port], {**environment_of(side.spec), "UCX_PROTO_INFO": "n"})
    side.link.send(port)
    code, lines = _listen(server)
    if code != 0:
        raise RuntimeError(f"the server of ucx_perftest {arguments[1]}: {_last(lines, code)}")


def _measure(side: Side, tool: Tool, arguments: Sequence[str], test: Test, tests: Mapping[str, Case]) -> None:
    port: str = side.link.recv()
    code, lines = 1, [_REFUSED]
    for _ in range(_ATTEMPTS):
        if code == 0 or not any(_REFUSED in line for line in lines):
            break
        time.sleep(_PAUSE)  # a successful connection is the only sign that the server listens
        code, lines = _listen(tool.start([*arguments, "-p", port, "127.0.0.1"], environment_of(side.spec)))
    taken, transports = parse(lines, tests, test.column)
    note = f"{test.note}; not compared; by {', '.join(transports) or 'unknown transports'}"
    for case, seconds in taken.items():
        side.report(case, [statistics.median(seconds)], verified=None, note=note, name=test.row)
    if code != 0:
        raise RuntimeError(f"ucx_perftest {test.arguments[1]}: {_last(lines, code)}")


def _listen(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Wait for a process's end; return its exit code and its output, which is printed here, too."""
    assert process.stdout is not None
    lines = []
    with process.stdout:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.wait(), lines


def _last(lines: Sequence[str], code: int) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
