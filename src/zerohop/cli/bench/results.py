"""Stores a benchmark run as JSON: the rows, and the facts that one needs to judge them."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerohop.cli.bench.rows import Row
from zerohop.machine import inspect

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIBRARIES = ("torch", "cuda-core", "cuda-bindings", "numpy")
_COLUMNS = frozenset(field.name for field in fields(Row))


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
    versions = {name: _version(name) for name in _LIBRARIES}
    return {
        "accelerators": machine["accelerators"],
        "nvidia": machine["nvidia"],
        "libraries": {name: version for name, version in versions.items() if version},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


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


def read_report(source: Path) -> Report:
    """Read a file that `write_report` wrote.

    Raises:
        ValueError: the file is no such report.
    """
    data = json.loads(source.read_text(encoding="utf-8"))
    try:
        rows = tuple(Row(**{key: row[key] for key in row if key in _COLUMNS}) for row in data.pop("rows"))
        return Report(**{**data, "command": tuple(data["command"]), "rows": rows})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{source} is not a report of zerohop bench: {error}") from error
