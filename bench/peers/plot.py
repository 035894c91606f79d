"""Draws the times and rates of one write over its size, and the page lists."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from bench.peers.table import OURS, peers, rate, size, what

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.peers.report import Report, Row

_COLOURS = ("#1b6ca8", "#e07a3f", "#2a9d8f", "#8e5ea2", "#c0392b", "#7f7f7f")


def available() -> bool:
    """Tell whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report, target: Path) -> None:
    """Draw into the file `target`, in the format of its suffix; rows with wrong bytes are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.verified is not False]
    colours = dict(zip(peers(report.rows), _COLOURS * len(report.rows), strict=False))
    figure = Figure(figsize=(17, 5.5), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state of pyplot
    left, middle, right = figure.subplots(1, 3)
    writes = [row for row in rows if row.name == "write"]
    left.set_title("Time of one write")
    _lines(left, writes, "p50_us", "µs, median, log scale", colours)
    middle.set_title("Rate of one write")
    _lines(middle, writes, "GBps", "GB/s at the median", colours)
    _bars(right, [row for row in rows if row.name == "write_pages"], colours)
    gpus = report.machine.get("gpus", [])
    where = "Within one GPU" if len(gpus) == 1 else "From GPU 0 to GPU 1"
    model = ", ".join(dict.fromkeys(gpus)) or "no GPU"
    figure.suptitle(f"{where}, from the call to done, between two processes: {model}")
    figure.savefig(target, dpi=110)


def _lines(axes: Any, rows: Sequence[Row], value: str, unit: str, colours: dict[str, str]) -> None:
    for name in peers(rows):
        points = sorted((row.bytes, getattr(row, value)) for row in rows if row.peer == name)
        width = 2.5 if name == OURS else 1.3
        axes.plot(*zip(*points, strict=True), marker="o", color=colours[name], linewidth=width, label=name)
    if rows:
        axes.set_xscale("log", base=2)
        ticks = sorted({row.bytes for row in rows})
        axes.set_xticks(ticks, [size(nbytes) for nbytes in ticks], rotation=45)
        axes.minorticks_off()
        axes.legend(fontsize=8)
    if value == "p50_us":
        axes.set_yscale("log")
    axes.set_xlabel("bytes of one write")
    axes.set_ylabel(unit)
    axes.grid(visible=True, alpha=0.3)


def _bars(axes: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    axes.set_title("A list of random pages")
    ordered = sorted(rows, key=lambda row: (-row.bytes, row.peer != OURS))
    for position, row in enumerate(ordered):
        axes.barh(position, row.GBps, color=colours[row.peer], height=0.6)
        axes.text(row.GBps, position, f" {rate(row.GBps)}", va="center", fontsize=8)
    axes.set_yticks(range(len(ordered)), [f"{row.peer}\n{what(row)}" for row in ordered], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("GB/s at the median")
