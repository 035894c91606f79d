"""Provides the frame of the lab's benchmarks: pairs of runs in turn, the median of their ratios, a table, a file."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
# The device that every guest has, and the index of its RoCE v2 address (docs/lab.md).
DEVICE, GID_INDEX, ADDRESS = "rxe0", 1, "10.9.0.1"


@dataclass(frozen=True)
class Row:
    """Holds one comparison. Ratios are zerohop's value over the other's, pair by pair.

    `ours` and `theirs` are medians; `low` and `high` are the quartiles of the ratios. `target` is the largest allowed
    ratio if `smaller` is better, else the least.
    """

    name: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    target: float
    smaller: bool
    pairs: int

    @property
    def holds(self) -> bool:
        """Tell whether the target is reached."""
        return self.ratio <= self.target if self.smaller else self.ratio >= self.target

    def line(self) -> str:
        """Return the row as text."""
        sign = "<=" if self.smaller else ">="
        return (
            f"{self.name:<44} {self.ours:10.2f} {self.theirs:10.2f} {self.unit:<5} ratio {self.ratio:5.2f} "
            f"({self.low:.2f} to {self.high:.2f}), target {sign} {self.target:g}: {'holds' if self.holds else 'MISSED'}"
        )


def compare(
    name: str,
    unit: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    target: float,
    smaller: bool,
    pairs: int,
) -> Row:
    """Run both in turn, `pairs` times; they begin alternately, so that neither always has the warmer machine."""
    found: list[tuple[float, float]] = []
    for turn in range(pairs):
        if turn % 2 == 0:
            mine = ours()
            found.append((mine, theirs()))
        else:
            other = theirs()
            found.append((ours(), other))
    ratios = sorted(mine / other for mine, other in found)
    quartiles = statistics.quantiles(ratios, n=4) if pairs > 1 else [ratios[0]] * 3
    row = Row(
        name,
        unit,
        statistics.median(mine for mine, _ in found),
        statistics.median(other for _, other in found),
        statistics.median(ratios),
        quartiles[0],
        quartiles[2],
        target,
        smaller,
        pairs,
    )
    print(row.line(), flush=True)
    return row


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all of these programs have."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="runs of each side, in turn (default: 20)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    return parser


def write(path: str | None, rows: Sequence[Row]) -> None:
    """Write the rows as JSON to the file that the user names, if any."""
    if path:
        Path(path).write_text(
            json.dumps([asdict(row) | {"holds": row.holds} for row in rows], indent=1) + "\n", encoding="utf-8"
        )


def perf() -> str:
    """Return the path of the native program that `make lab` builds; without it, exit with the command to type."""
    program = ROOT / "build/lab/native/zerohop_perf"
    if not program.exists():
        sys.exit(f"{program} is not there. Type: make lab-bench")
    return str(program)
