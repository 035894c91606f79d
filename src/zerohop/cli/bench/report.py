"""The rows of a benchmark as a table for people, with the floor and the target beside each number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from zerohop.cli.bench.targets import judge
from zerohop.cli.console import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from zerohop.cli.bench.plan import Case
    from zerohop.cli.bench.rows import Row

_LARGE = 64 << 10  # from here on the rate says more than the time


def describe_case(row: Row | Case) -> str:
    """Names a row in words: `write shm ring, target asleep, host→host, 8 B`."""
    how = " ".join(part for part in (row.name, row.provider, row.form, row.mode) if part)
    where = f"{row.src}→{row.dst}" if row.src and row.dst else row.src
    size = human_bytes(row.bytes) if row.bytes else None
    if size and row.batch > 1:
        size = f"{row.batch} × {size}"
    return ", ".join(part for part in (how, f"target {row.target}" if row.target else None, where, size) if part)


def print_table(console: Console, rows: Sequence[Row]) -> None:
    """Prints all rows; nothing for no rows."""
    if not rows:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("row", ratio=3)
    for title in ("p50 µs", "p99", "p99.9", "GB/s", "CPU µs/op"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("floor", ratio=2)
    table.add_column("target")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("verified", no_wrap=True)
    for row in rows:
        verdict = judge(row)
        target = measured = ""
        if verdict is not None:
            target = verdict.target
            measured = f"[{'green' if verdict.met else 'red'}]{verdict.measured} {'✓' if verdict.met else '✗'}[/]"
        table.add_row(
            describe_case(row),
            _number(row.p50_us),
            _number(row.p99_us),
            _number(row.p999_us),
            _number(row.GBps),
            _number(row.cpu_us_per_op),
            _floor(row),
            target,
            measured,
            "[green]yes[/]" if row.verified else "[bold red]NO[/]",
        )
    console.print(table)
    judged = [verdict for verdict in map(judge, rows) if verdict is not None]
    if judged:
        console.print(f"targets met: {sum(verdict.met for verdict in judged)} of {len(judged)}")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _floor(row: Row) -> str:
    if row.floor is None:
        return "–"
    if row.floor_GBps is not None and row.bytes * row.batch >= _LARGE:
        return f"{_number(row.floor_GBps)} GB/s {row.floor}"
    return f"{_number(row.floor_p50_us)} µs {row.floor}"
