"""Prints the rows of a benchmark as tables, with the floor and the target beside each number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table

from zerohop.cli.bench.targets import judge
from zerohop.cli.console import human_bytes, human_us, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from zerohop.cli.bench.rows import Case, Row

_LARGE = 64 << 10  # from this size on the rate says more than the time


def describe_case(row: Row | Case) -> str:
    """Describe a row in words: `write shm ring 8 B, target asleep`; names the places only if one is not the host."""
    size = human_bytes(row.bytes) if row.bytes else None
    if size and row.batch > 1:
        size = f"{row.batch} × {size}"
    what = " ".join(part for part in (row.name, row.provider, row.form, size) if part)
    elsewhere = row.dst is not None and (row.src, row.dst) != ("host", "host")
    details = (row.mode, f"target {row.target}" if row.target else None, f"{row.src}→{row.dst}" if elsewhere else None)
    return ", ".join(part for part in (what, *details) if part)


def row_text(row: Row) -> str:
    """Describe a row, and say why it has no numbers if nothing was measured."""
    return describe_case(row) if row.missing is None else f"{describe_case(row)} (not measured: {row.missing})"


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """Print all rows; nothing for no rows."""
    if not rows:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("row")
    for title in ("median", "p99", "GB/s", "CPU/op"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("floor")
    # A column is shown only if a row has something for it.
    extra = [(head, tell) for head, tell in _EXTRA if any(tell(row) for row in rows)]
    for head, _ in extra:
        table.add_column(head)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    for row in rows:
        verdicts = judge(row, rows)
        measured = "\n".join(verdict.measured for verdict in verdicts)
        target = "\n".join(
            f"[{'green' if verdict.met else 'red'}]{'✓' if verdict.met else '✗'} {verdict.target}[/]"
            for verdict in verdicts
        )
        wrong = "" if row.verified else " [bold red]WRONG BYTES[/]"
        table.add_row(escape(row_text(row)) + wrong, *numbers(row), *(tell(row) for _, tell in extra), measured, target)
    print_table(console, table)
    judged = [verdict for row in rows for verdict in judge(row, rows)]
    if judged:
        console.print(f"targets met: {sum(verdict.met for verdict in judged)} of {len(judged)}")


def summarize(row: Row) -> str:
    """Return one line about a row that has just been measured."""
    median, _, rate, _, _ = numbers(row)
    figures = ", ".join(text for text in (median, f"{rate} GB/s") if not text.startswith("–"))
    line = f"{row_text(row)}: {figures}" if figures else row_text(row)
    return line if row.verified else f"{line}, WRONG BYTES"


def numbers(row: Row) -> tuple[str, str, str, str, str]:
    """Return the readable median, 99th percentile, rate, processor time and floor."""
    return human_us(row.p50_us), human_us(row.p99_us), _rate(row.GBps), human_us(row.cpu_us_per_op), _floor(row)


def beside(row: Row) -> str:
    """Return the measurement that took turns with a row, and how it compares; empty without one."""
    if row.beside_p50_us is None or row.p50_us is None:
        return ""
    return f"{human_us(row.beside_p50_us)}, {row.beside} ({row.p50_us / row.beside_p50_us:.2f} ×)"


def seed(row: Row) -> str:
    """Return the number of RdmaTransport's documentation, and how the row compares; empty without one."""
    if row.seed_us is None or row.p50_us is None:
        return ""
    return f"{human_us(row.seed_us)} ({row.seed_us / row.p50_us:.1f} ×)"


def effort_of(row: Row) -> str:
    """Return the processor seconds for 10^9 bytes, and those of what was measured beside it; empty without them."""
    if row.cpu_s_per_gb is None:
        return ""
    server = "" if row.server_cpu_s_per_gb is None else f" + {row.server_cpu_s_per_gb:.3f} server"
    others = (("beside", row.other_cpu_s_per_gb), (row.floor, row.floor_cpu_s_per_gb))
    told = ", ".join(f"{name} {seconds:.3f}" for name, seconds in others if seconds is not None)
    return f"{row.cpu_s_per_gb:.3f}{server}{f' ({told})' if told else ''}"


def _rate(gbps: float | None) -> str:
    if gbps is None:
        return "–"
    return f"{gbps:.1f}" if gbps >= 10 else f"{gbps:.2f}"


def _floor(row: Row) -> str:
    if row.floor is None:
        return "–"
    if row.floor_GBps is not None and row.bytes * row.batch >= _LARGE:
        return f"{_rate(row.floor_GBps)} GB/s, {row.floor}"
    return f"{human_us(row.floor_p50_us)}, {row.floor}"


# Columns that few rows have: a measurement that took turns with it, the number of RdmaTransport's documentation, and
# the processor time of reads of files.
_EXTRA: Final = (("beside", beside), ("RdmaTransport (different fabric)", seed), ("CPU s/GB", effort_of))
