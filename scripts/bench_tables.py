"""Reads results of `zerohop bench`, and makes the tables that the pages about them share."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from zerohop.cli.bench.report import beside, describe_case, effort_of, numbers, row_text, seed
from zerohop.cli.bench.results import Report
from zerohop.cli.bench.rows import Row
from zerohop.cli.bench.storage_plan import SERVED_NAMES
from zerohop.cli.bench.targets import judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COLUMNS: Final = frozenset(field.name for field in fields(Row))


def read_report(source: Path) -> Report:
    """Read a file that `zerohop.cli.bench.results.write_report` wrote.

    Raises:
        ValueError: the file is no such report.
    """
    data = json.loads(source.read_text(encoding="utf-8"))
    try:
        rows = tuple(Row(**{key: row[key] for key in row if key in _COLUMNS}) for row in data.pop("rows"))
        return Report(**{**data, "command": tuple(data["command"]), "rows": rows})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{source} is not a report of zerohop bench: {error}") from error


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a page of the documentation."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def beside_table(rows: Sequence[Row]) -> str:
    """Return a table of the rows compared with other rows of zerohop or RdmaTransport's documentation."""
    head = ("row", "median", "beside it", "RdmaTransport, 400 Gb/s NIC", "floor")
    lines = [
        (describe_case(row), numbers(row)[0], beside(row) or "–", seed(row) or "–", numbers(row)[-1])
        for row in rows
        if beside(row) or seed(row)
    ]
    return markdown(head, lines)


def targets_section(report: Report, heading: str) -> str:
    """Return a table of the targets of a report's rows, below a heading of that level that says how many are met."""
    judged = [(row, verdict) for row in report.rows for verdict in judge(row, report.rows)]
    met = sum(verdict.met for _, verdict in judged)
    lines = [
        (describe_case(row), verdict.measured, numbers(row)[-1], verdict.target, "yes" if verdict.met else "**no**")
        for row, verdict in judged
    ]
    table = markdown(("row", "measured", "floor", "target", "met"), lines)
    return f"\n{heading} Targets: {met} of {len(judged)} met\n\n{table}" if judged else ""


def rows_section(report: Report, heading: str) -> str:
    """Return a table of all rows but those with another one beside them, below a heading of that level."""
    lines = [(row_text(row), *numbers(row)) for row in report.rows if not row.beside]
    return f"\n{heading} All rows\n\n{markdown(('row', 'median', 'p99', 'GB/s', 'CPU for each', 'floor'), lines)}"


def files_table(report: Report, *, served: bool) -> str:
    """Return a table of the rows about files of this machine, or of those about a server's."""
    head = ("row", "reads/s", "GB/s", "floor or row beside it", "median of ratios", "target", "CPU s/GB", "met")
    lines = []
    for row in report.rows:
        if (row.name in SERVED_NAMES) != served:
            continue
        verdicts = judge(row, report.rows)
        floor = beside(row) or numbers(row)[-1]
        if served and beside(row) and row.floor_p50_us is not None:
            floor += f"; {numbers(row)[-1]}"
        ratio = "–" if row.of_other is None else f"{row.of_other:.2f} ×"
        reads = "–" if row.p50_us is None else f"{row.batch / row.p50_us * 1e6:,.0f}"
        target = ", ".join(verdict.target for verdict in verdicts) or "–"
        met = ", ".join("yes" if verdict.met else "**no**" for verdict in verdicts) or "–"
        lines.append((row_text(row), reads, numbers(row)[2], floor, ratio, target, effort_of(row) or "–", met))
    return markdown(head, lines)
