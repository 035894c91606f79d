"""Stores a run as JSON: the rows, the missing peers with reasons, and the machine."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Row:
    """Holds one measured row.

    Attributes:
        peer, version: the library that moved the bytes.
        name: `write`, `read`, `write_pages`, or a name that only this peer has.
        bytes: of one operation, or of one page.
        batch: pages in one operation.
        p50_us: microseconds from the call until the caller knows that it is done.
        GBps: 10^9 bytes a second at that time.
        verified: whether every byte arrived, and no other was written; None if the peer's own tool measured.
        note: how the peer was used, or the path that it reports.
    """

    peer: str
    version: str
    name: str
    bytes: int
    batch: int
    p50_us: float
    GBps: float
    verified: bool | None
    note: str = ""


@dataclass
class Missing:
    """Names a peer that has no rows, or not all of them, and the reason."""

    peer: str
    reason: str


@dataclass
class Report:
    """Holds one run."""

    machine: dict[str, Any]
    measured: str = field(default_factory=lambda: dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"))
    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def wrong(self) -> list[Row]:
        """Return the rows with wrong bytes."""
        return [row for row in self.rows if row.verified is False]

    def write(self, target: Path) -> None:
        """Write the file anew; a reader never sees half of it."""
        data = {key: asdict(self)[key] for key in ("measured", "machine", "rows", "missing")}
        half = target.with_name(target.name + ".new")
        half.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        half.replace(target)


def read(source: Path) -> Report:
    """Read a file that `Report.write` wrote.

    Raises:
        ValueError: the file is no such report.
    """
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
        rows = [Row(**row) for row in data["rows"]]
        missing = [Missing(**each) for each in data["missing"]]
        return Report(data["machine"], data["measured"], rows, missing)
    except (TypeError, KeyError) as error:
        raise ValueError(f"{source} is not a report of bench.peers: {error}") from error
