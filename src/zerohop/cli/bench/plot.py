"""Draws a benchmark: latencies of 8-byte rows, rates over sizes, and page lists, each beside its floor."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from zerohop.cli.bench.targets import judge
from zerohop.cli.console import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zerohop.cli.bench.rows import Row

_SMALL = 64
_WIDE = 30  # bars get a logarithmic scale if the largest is this many times the smallest
_TICKS = 9  # number of sizes that have room under an axis
_COLOURS = {"mapped": "#1b6ca8", "ring": "#2a9d8f", "stream": "#e07a3f", "staged": "#8e5ea2", "peer": "#5b8c2a"}


class PlotUnavailable(RuntimeError):
    """Raised if matplotlib is not installed, or cannot draw the file; the text says what to do."""


def require_matplotlib() -> None:
    """Raise PlotUnavailable, before anything is measured, if a plot could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotUnavailable("--plot needs matplotlib, which is not installed: pip install 'zerohop[plot]'")


def require_format(target: Path) -> None:
    """Raise PlotUnavailable, before anything is measured, if matplotlib cannot draw into a file of this name."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    formats = sorted(FigureCanvasAgg.get_supported_filetypes())
    if target.suffix[1:].lower() not in formats:
        raise PlotUnavailable(f"cannot draw into {target}: its name must end in one of {', '.join(formats)}")


def draw(rows: Sequence[Row], target: Path) -> None:
    """Draw `rows` into the file `target`, in the format of its suffix.

    Raises:
        PlotUnavailable: matplotlib is not installed.
        ValueError: matplotlib does not know the suffix.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    latencies = [row for row in rows if row.p50_us is not None and 0 < row.bytes <= _SMALL and row.batch == 1]
    rates = [row for row in rows if row.name == "write" and row.GBps is not None and row.batch == 1]
    pages = [row for row in rows if row.name.endswith("_pages") and row.GBps is not None]
    height = max(4.0, 0.32 * max(len(latencies), len(pages)) + 1.2)
    figure = Figure(figsize=(17, height), layout="constrained")
    FigureCanvasAgg(figure)  # no display, no global state of pyplot
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1.1, 1))
    _bars(left, latencies, "p50_us", "floor_p50_us", "µs, median", "Latency of small operations")
    _lines(middle, rates)
    _bars(right, pages, "GBps", "floor_GBps", "GB/s, median", "Lists of random pages")
    figure.suptitle("zerohop bench: two processes, from Python, every byte verified; black: the floor of the same run")
    figure.savefig(target, dpi=110)


def _bars(axes: Any, rows: Sequence[Row], value: str, floor: str, unit: str, title: str) -> None:
    axes.set_title(title)
    values = [getattr(row, value) for row in rows]
    wide = bool(values) and max(values) > _WIDE * min(values)
    if wide:
        axes.set_xscale("log")
    axes.set_xlabel(f"{unit}, log scale" if wide else unit)
    for position, row in enumerate(rows):
        measured = getattr(row, value)
        axes.barh(position, measured, color=_COLOURS.get(row.form or "", "grey"), height=0.6)
        mark = "".join(f"  ({verdict.target})" for verdict in judge(row, rows)[:1])
        limit = getattr(row, floor)
        shown = f"{measured:.0f}" if measured >= 100 else f"{measured:.3g}"
        axes.text(max(measured, limit or 0), position, f" {shown}{mark}", va="center", fontsize=8)
        if limit is not None:
            axes.plot([limit, limit], [position - 0.4, position + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.35)


def _lines(axes: Any, rows: Sequence[Row]) -> None:
    axes.set_title("Rate of write over size")
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row.target != "asleep":
            how = f"{row.form}, {row.mode}" if row.mode else f"{row.form}"
            series.setdefault(f"{row.provider} {how}, {row.src}→{row.dst}", []).append(row)
    for name, points in series.items():
        ordered = sorted(points, key=lambda row: row.bytes)
        colour = _COLOURS.get(ordered[0].form or "", "grey")
        # Other kinds of memory have few sizes, and get marks beside the lines.
        style = " " if ordered[0].mode else "-" if ordered[0].provider == "shm" else "-."
        axes.plot(
            [row.bytes for row in ordered],
            [row.GBps for row in ordered],
            style,
            marker="x" if ordered[0].mode else "o",
            color="black" if ordered[0].mode else colour,
            label=name,
        )
        floors = [(row.bytes, row.floor_GBps) for row in ordered if row.floor_GBps is not None and not row.mode]
        if floors:
            axes.plot(*zip(*floors, strict=True), ":", color="black", linewidth=1)
    if series:
        axes.set_xscale("log", base=2)
        sizes = sorted({row.bytes for row in rows})
        ticks = sizes[:: -(-len(sizes) // _TICKS)]
        axes.set_xticks(ticks, [human_bytes(nbytes) for nbytes in ticks], rotation=45)
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.legend(fontsize=8)
    axes.set_xlabel("bytes of one write")
    axes.set_ylabel("GB/s, median, log scale; dotted: the floors")
    axes.grid(visible=True, alpha=0.3)


def _label(row: Row) -> str:
    how = ", ".join(part for part in (row.form, row.mode, row.target) if part)
    pages = f" {row.batch} × {human_bytes(row.bytes)}" if row.name.endswith("_pages") else ""
    return f"{row.name}{pages} {row.provider} ({how})"
