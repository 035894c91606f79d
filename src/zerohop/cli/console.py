"""Provides the output of the commands: one console, readable sizes and times, and the progress of long work."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.tree import Tree

_PLAIN_WIDTH = 160  # a pipe or a log file has no width: do not fold tables at 80 columns


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that colours terminals and prints plain text elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, emoji=False, width=None if stream.isatty() else _PLAIN_WIDTH)


def make_grid() -> Table:
    """Return a table without lines and headings, whose first column is bold."""
    grid = Table(box=None, show_header=False, padding=(0, 2), pad_edge=True)
    grid.add_column(style="bold", no_wrap=True)
    return grid


def print_table(console: Console, table: Table | Tree) -> None:
    """Print a table or a tree; into a file or a pipe without the spaces that pad its lines."""
    if console.is_terminal:
        console.print(table)
        return
    for line in console.render_lines(table, pad=False):
        console.print(Text("".join(segment.text for segment in line).rstrip()), soft_wrap=True)


def human_bytes(nbytes: int) -> str:
    """Format a size: 8 B, 64 KiB, 86.7 MiB."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.0f} GiB" if value == int(value) else f"{value:.1f} GiB"


def human_time(seconds: float) -> str:
    """Format a duration: 4.2 µs, 13 ms, 2.5 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def human_us(microseconds: float | None) -> str:
    """Format a duration in microseconds; a dash for None."""
    return "–" if microseconds is None else human_time(microseconds / 1e6)


@contextmanager
def long_work(console: Console, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of work that is counted in bytes; yield a function that takes the number of bytes just done.

    A terminal gets a bar; any other output gets a plain line at most once a second.
    """
    if console.is_terminal:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("  {task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bar:
            task = bar.add_task(what, total=total_bytes)
            yield lambda nbytes: bar.update(task, advance=nbytes)
        return
    done = 0
    last = time.monotonic()

    def advance(nbytes: int) -> None:
        nonlocal done, last
        done += nbytes
        now = time.monotonic()
        if now - last >= 1.0:
            last = now
            console.print(f"  {what}: {human_bytes(done)} of {human_bytes(total_bytes)}")

    yield advance
