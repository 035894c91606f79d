"""Stores a benchmark run as JSON: the rows, and what one needs to judge them, such as how busy the machine was."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zerohop.machine import inspect
from zerohop.machine.facts import package_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.cli.bench.rows import Row

_LIBRARIES = ("torch", "cuda-core", "cuda-bindings", "numpy")
NOISY: Final = 0.1  # a run is not called quiet if others use this many processors or more
_IDLE, _WAITING = 3, 4  # fields of /proc/stat


class Neighbours:
    """Measures the processor time that others use from now on. Children of this process count once they have ended."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """Take the first reading."""
        self._stat = stat
        self._started = time.monotonic()
        self._busy_at_first = self._busy()

    def processors(self) -> float | None:
        """Return the average number of processors that others kept busy; None if the kernel does not say."""
        busy = self._busy()
        if busy is None or self._busy_at_first is None:
            return None
        return round(max(0.0, busy - self._busy_at_first) / max(0.01, time.monotonic() - self._started), 3)

    def _busy(self) -> float | None:
        """Return the seconds that others used, or the hypervisor took, since the machine started."""
        try:
            ticks = [int(word) for word in self._stat.read_text("ascii").splitlines()[0].split()[1:9]]
        except (OSError, ValueError, IndexError):
            return None
        used = (sum(ticks) - ticks[_IDLE] - ticks[_WAITING]) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return used - own.user - own.system - own.children_user - own.children_system


@dataclass(frozen=True, slots=True)
class Report:
    """Holds one run.

    Attributes:
        zerohop: version of the library.
        measured: time of the run, in UTC.
        command: the command line.
        machine: processor, kernel and memory, as `zerohop info --json` has them. With NVIDIA GPUs also the GPUs, their
            driver, and the versions of the libraries that matter.
        seconds: duration of the run.
        other_processors: number of processors that other processes kept busy meanwhile; None if it is not known.
        rows: the measured rows.
    """

    zerohop: str
    measured: str
    command: tuple[str, ...]
    machine: dict[str, Any]
    seconds: float
    other_processors: float | None
    rows: tuple[Row, ...]

    @classmethod
    def of_this_machine(cls, rows: Sequence[Row], seconds: float, other_processors: float | None) -> Report:
        """Make the report of a run that has just ended."""
        machine = inspect().to_json()
        return cls(
            zerohop=machine["zerohop"],
            measured=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            command=("zerohop", *sys.argv[1:]),
            machine={key: machine[key] for key in ("cpu", "kernel", "memory")} | _gpus(machine),
            seconds=round(seconds, 1),
            other_processors=other_processors,
            rows=tuple(rows),
        )


def _gpus(machine: dict[str, Any]) -> dict[str, Any]:
    if machine["nvidia"] is None:
        return {}
    versions = {name: package_version(name) for name in _LIBRARIES}
    return {
        "accelerators": machine["accelerators"],
        "nvidia": machine["nvidia"],
        "libraries": {name: version for name, version in versions.items() if version != "unknown"},
    }


def require_writable(target: Path) -> None:
    """Raise OSError, before anything is measured, if the file could not be written. Makes and changes nothing."""
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a directory")
    folder = target.parent
    if not target.exists() and not folder.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no directory {folder}")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise PermissionError(f"cannot write {target}: permission denied")


def write_report(target: str, report: Report) -> None:
    """Write `report` into the file `target`, or to standard output for "-"."""
    data = {field.name: getattr(report, field.name) for field in fields(Report)}
    data["rows"] = [row.to_json() for row in report.rows]
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")
