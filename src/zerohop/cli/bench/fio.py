"""Measures the floor of the rows about files: fio, which reads the same file by io_uring into fixed huge pages."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.cli.bench.rows import Case

_MISSING: Final = "fio (not there: apt-get install fio)"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
# Seconds that fio may take beside the time that it is to measure.
_GRACE_S: Final = 60.0
# Seconds of the run that tells what fio takes beside reading.
_SHORTEST_S: Final = 0.01


class FioFails(Exception):
    """Raised if fio cannot measure; the text is its own."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Holds one measurement of a file: its seconds, the reads that ended, and the processor seconds that they took."""

    seconds: float
    operations: int
    cpu_s: float

    @property
    def rate(self) -> float:
        """Return reads per second."""
        return self.operations / self.seconds


class Fio:
    """Runs fio, if this machine has it.

    Attributes:
        name: what a row calls its floor: fio's version, or why there is none.
    """

    def __init__(self) -> None:
        """Look for the program, and ask for its version."""
        self._program = shutil.which("fio")
        # Processor seconds that it takes to begin and to end, whatever it reads; None until they were measured.
        self._idle_cpu_s: float | None = None
        self.name = _MISSING
        if self._program is not None:
            told = subprocess.run(
                [self._program, "--version"], check=False, capture_output=True, text=True, timeout=_GRACE_S
            )
            self.name = told.stdout.strip() or "fio"

    def read(self, file: Path, case: Case, seconds: float, *, direct: bool, in_order: bool) -> Turn | None:
        """Read blocks of a file for so many seconds, as many at a time as the case has; None if there is no fio.

        Its processor time is that of the whole process: the kernel's threads that read for it are in no number of its
        own. What a very short run takes is left out, as it is no reading.

        Raises:
            FioFails: it says that it cannot.
        """
        if self._program is None:
            return None
        if self._idle_cpu_s is None:
            short, used = self._measured(file, case, _SHORTEST_S, direct=direct, in_order=in_order)
            self._idle_cpu_s = max(0.0, used - short.cpu_s)
        turn, used = self._measured(file, case, seconds, direct=direct, in_order=in_order)
        return replace(turn, cpu_s=max(turn.cpu_s, used - self._idle_cpu_s))

    def _measured(self, file: Path, case: Case, seconds: float, *, direct: bool, in_order: bool) -> tuple[Turn, float]:
        """Return what fio tells, and the processor seconds of its processes."""
        assert self._program is not None
        command = [
            *(self._program, "--name=row", f"--filename={file.name}", f"--size={file.stat().st_size}", "--readonly"),
            *(f"--rw={'read' if in_order else 'randread'}", f"--bs={case.bytes}", f"--iodepth={case.batch}"),
            *("--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", f"--direct={int(direct)}"),
            "--iomem_align=2m",
            *("--time_based", f"--runtime={round(seconds * 1000)}ms", "--output-format=json"),
        ]
        before = _cpu_of_children()
        # In the file's folder, because fio takes a colon in a path for the end of a name.
        run = subprocess.run(
            command,
            cwd=file.parent,
            env=_with_huge_pages(),
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds + _GRACE_S,
        )
        try:
            job: dict[str, Any] = json.loads(run.stdout[run.stdout.index("{") :])["jobs"][0]
            turn = _turn_of(job)
        except (ValueError, LookupError, TypeError):
            turn = None
        if run.returncode != 0 or turn is None:
            lines = (run.stderr or run.stdout).strip().splitlines()
            raise FioFails(lines[0] if lines else f"exit status {run.returncode}")
        return turn, _cpu_of_children() - before


def _cpu_of_children() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _with_huge_pages() -> dict[str, str]:
    """Return the environment in which fio's memory has huge pages, as an Iov has: small ones can halve its rate."""
    before = os.environ.get("GLIBC_TUNABLES")
    return {**os.environ, "GLIBC_TUNABLES": f"{before}:{_HUGE_PAGES}" if before else _HUGE_PAGES}


def _turn_of(job: dict[str, Any]) -> Turn | None:
    """Return what fio tells of its only job; None if that has read nothing."""
    reads, seconds = job["read"], job["job_runtime"] / 1000
    if not reads["total_ios"] or not reads["runtime"]:
        return None
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    return Turn(reads["runtime"] / 1000, reads["total_ios"], cpu_s)
