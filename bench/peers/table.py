"""Formats the rows as Markdown tables, which read well on a terminal too, with one column for each peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peers.report import Report, Row

OURS: Final = "zerohop"
TITLES: Final = {
    "write": "One write",
    "write_expandable": "One write from and to PyTorch's expandable segments",
    "write_pages": "A list of random pages within 64 MiB",
    "write_list": "A list of ranges of 16 B to 64 KiB, most of them short",
    "read": "One read",
}


def size(nbytes: int) -> str:
    """Return a size such as 8 B, 64 KiB or 256 MiB."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def duration(microseconds: float) -> str:
    """Return a duration such as 4.21 µs or 13.1 ms."""
    return f"{microseconds:.3g} µs" if microseconds < 999.5 else f"{microseconds / 1000:.3g} ms"


def rate(gbps: float) -> str:
    """Return a rate such as 0.31 GB/s or 378 GB/s."""
    return f"{gbps:.0f} GB/s" if gbps >= 100 else f"{gbps:.3g} GB/s"


def what(row: Row) -> str:
    """Return the size of a row, or for a list of pages their number and size."""
    return size(row.bytes) if row.batch == 1 else f"{row.batch} × {size(row.bytes)}"


def peers(rows: Sequence[Row]) -> list[str]:
    """Return the names in the order of the columns: zerohop, then the order of measuring."""
    names = dict.fromkeys(row.peer for row in rows)
    return sorted(names, key=lambda name: name != OURS)


def cell(row: Row | None, ours: Row | None) -> str:
    """Return time and rate of a row, and its time as a multiple of zerohop's."""
    if row is None:
        return "–"
    parts = [duration(row.p50_us), rate(row.GBps)]
    if ours is not None and ours is not row:
        factor = row.p50_us / ours.p50_us
        parts.append(f"{factor:.0f}×" if factor >= 100 else f"{factor:.2f}×")
    mark = {True: "", None: " †", False: " **wrong bytes**"}[row.verified]
    return ", ".join(parts) + mark


def sections(report: Report) -> list[tuple[str, str]]:
    """Return titles and tables: one for each kind of row that several peers can have, then one for all others."""
    found = []
    for name, title in TITLES.items():
        rows = [row for row in report.rows if row.name == name]
        if rows:
            found.append((title, _side_by_side(rows)))
    rest = [row for row in report.rows if row.name not in TITLES]
    if rest:
        lines = [(row.peer, row.name, what(row), cell(row, None), row.note) for row in rest]
        found.append(("Other rows", markdown(("peer", "row", "size", "measured", "how"), lines)))
    return found


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    every = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |\n" for line in every)


def _side_by_side(rows: Sequence[Row]) -> str:
    names = peers(rows)
    lines: dict[tuple[int, int], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.bytes, row.batch), {})[row.peer] = row
    cells = [
        [what(next(iter(line.values()))), *(cell(line.get(name), line.get(OURS)) for name in names)]
        for line in lines.values()
    ]
    return markdown(["size", *names], cells)
