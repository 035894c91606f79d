"""Starts the two processes of a peer, gathers its rows, and ends both at a hard limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from bench.peers.catalogue import Peer
    from bench.peers.workload import Spec

ROOT: Final = Path(__file__).parents[2]
# Seconds for the other process to end by itself once one has failed, or once all is measured.
_LAST_WORDS: Final = 3.0
_TAIL: Final = 4096


@dataclass
class Outcome:
    """Holds the outcome of a peer: its rows, its version if it sent one, and the reason why there are no more rows."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    version: str = ""
    reason: str | None = None


class _Process:
    """Runs one of the two processes, in a process group of its own with all processes that it starts."""

    def __init__(
        self, peer: Peer, rank: int, link: Connection, results: Connection, output: IO[bytes], env: Mapping[str, str]
    ) -> None:
        self.rank = rank
        self.output = output
        descriptors = (link.fileno(), results.fileno())
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.worker", peer.module, str(rank), *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            start_new_session=True,
            env=dict(env),
        )

    def kill(self) -> None:
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def ending(self) -> str:
        """Return how a process ended that has closed its connection, and the last line that it printed."""
        try:
            code = self.popen.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            return "closed its connection, and did not end"
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self.last_line()
        return f"{how}: {said}" if said else how

    def last_line(self) -> str:
        """Return the last line that it has printed so far."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _TAIL))
        lines = self.output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def measure(
    peer: Peer, spec: Spec, limit: float, *, environment: Mapping[str, str] | None = None, logs: Path | None = None
) -> Outcome:
    """Measure one peer; it returns whatever happens to the peer's processes.

    Args:
        peer: the peer to measure.
        spec: cases and effort for the peer.
        limit: seconds after which its processes are killed.
        environment: more variables for its processes.
        logs: folder for the output of its processes; None: the output is not kept.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **peer.environment, **(environment or {})}
    with ExitStack() as stack:
        links = [stack.enter_context(end) for end in Pipe()]
        processes: dict[Connection, _Process] = {}
        for rank in (0, 1):
            ours, theirs = Pipe()
            stack.enter_context(ours)
            ours.send(spec)  # before the process starts, since it may end early
            output = stack.enter_context(_output(peer, rank, logs, expandable=bool(environment)))
            with theirs:
                process = _Process(peer, rank, links[rank], theirs, output, env)
            stack.callback(process.kill)
            links[rank].close()
            processes[ours] = process
        return _gather(processes, limit)


def _output(peer: Peer, rank: int, logs: Path | None, *, expandable: bool) -> IO[bytes]:
    if logs is None:
        return tempfile.TemporaryFile()
    return (logs / f"{peer.name}{'-expandable' * expandable}-{rank}.log").open("w+b")


def _gather(processes: Mapping[Connection, _Process], limit: float) -> Outcome:
    outcome = Outcome()
    reasons: list[str] = []
    told: set[int] = set()  # ranks whose end needs no other explanation
    done = False
    waiting = dict(processes)
    deadline = time.monotonic() + limit
    while waiting:
        ready = cast("list[Connection]", wait(list(waiting), max(0.0, deadline - time.monotonic())))
        if not ready:
            if not done and not reasons:
                reasons.append(f"did not end within {limit:g} s{_words(processes)}")
            break
        for connection in ready:
            process = waiting[connection]
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                del waiting[connection]
                if process.rank not in told:
                    reasons.append(process.ending())
            else:
                if kind == "row":
                    outcome.rows.append(value)
                elif kind == "version":
                    outcome.version = value
                else:
                    told.add(process.rank)
                    done |= kind == "done" and process.rank == 0
                    reasons += [value] if kind == "failed" else []
        if done or reasons:
            deadline = min(deadline, time.monotonic() + _LAST_WORDS)
    if not done:
        outcome.reason = reasons[0] if reasons else f"ended without a result{_words(processes)}"
    return outcome


def _words(processes: Mapping[Connection, _Process]) -> str:
    said = next((line for process in processes.values() if (line := process.last_line())), "")
    return f": {said}" if said else ""
