"""Compares the benchmark's rows of another commit with those of this tree: builds both, and measures them in turn.

bench_compare.py [--rows REGEX] [--rounds N] BASE

The other commit is checked out and built beside this tree, below build/, and removed at the end, whatever ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench_tables import read_report
from rich.markup import escape
from rich.table import Table

from zerohop.cli.bench.plan import parse_filter
from zerohop.cli.bench.report import describe_case
from zerohop.cli.console import human_time, human_us, make_console, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from rich.console import Console

    from zerohop.cli.bench.results import Report

ROOT: Final = Path(__file__).resolve().parents[1]
APART: Final = 1.1
# Rows of a Transport take most of the time of a run, and repeat those of the Context.
ROWS: Final = r"^(?!transport|idle|import)"
_BUILD_S, _BENCH_S = 1800.0, 3600.0
_END_S: Final = 10.0
# Variables of make are meant for this tree, and those of a developer would change the measured numbers.
_NOT_FOR_CHILDREN: Final = ("MAKE", "MFLAGS", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "ZEROHOP_")


class Failed(Exception):
    """Is raised with a text for the user, which says why there is no comparison."""


@dataclass(frozen=True, slots=True)
class Line:
    """Holds the medians of a row in microseconds, one of each round, in both trees; empty if a tree has no such row."""

    row: str
    base: tuple[float, ...]
    this: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Return how many times as long this tree takes; None if one of the two has no such row."""
        if not self.base or not self.this:
            return None
        return statistics.median_low(self.this) / statistics.median_low(self.base)

    @property
    def verdict(self) -> str:
        """Say "slower" or "faster" of this tree if the two are apart; else nothing."""
        ratio = self.ratio
        if ratio is None:
            return "only in this tree" if self.this else "only in the base"
        return "slower" if ratio > APART else "faster" if ratio < 1 / APART else ""


def compare(base: Sequence[Report], this: Sequence[Report]) -> list[Line]:
    """Return the rows of the reports of two trees in the order of the table; without those that have no median."""
    sides = [_medians(reports) for reports in (base, this)]
    names = dict.fromkeys([*sides[1], *sides[0]])
    return [Line(name, *(tuple(side.get(name, ())) for side in sides)) for name in names]


def _medians(reports: Sequence[Report]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for report in reports:
        for row in report.rows:
            if row.p50_us is not None:
                found.setdefault(describe_case(row), []).append(row.p50_us)
    return found


def print_lines(console: Console, lines: Sequence[Line], base: str) -> None:
    """Print the table, and below it every round of the rows that are apart."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("row")
    for head in (base, "this tree", "ratio"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for line in lines:
        ratio = "–" if line.ratio is None else f"{line.ratio:.2f} ×"
        colour = {"slower": "red", "faster": "green"}.get(line.verdict, "dim")
        marked = f"[{colour}]{line.verdict}[/]"
        table.add_row(escape(line.row), _median(line.base), _median(line.this), ratio, marked)
    print_table(console, table)
    apart = [line for line in lines if line.verdict in ("slower", "faster")]
    console.print(f"{len(apart)} of {len(lines)} rows are more than {APART - 1:.0%} apart")
    for line in apart:
        rounds = (", ".join(map(human_us, times)) for times in (line.base, line.this))
        console.print(escape(f"{line.verdict}: {line.row}: {base} {next(rounds)}; this tree {next(rounds)}"))


def _median(times: Sequence[float]) -> str:
    return human_us(statistics.median_low(times)) if times else "–"


def commit_of(word: str) -> str:
    """Return the full name of a commit.

    Raises:
        Failed: there is no such commit.
    """
    if not word:
        raise Failed("which commit is the base? make bench-compare BASE=main, or any other commit")
    # With a dash at its beginning it would be an option.
    command = ["git", "rev-parse", "--verify", "--end-of-options", f"{word}^{{commit}}"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failed(f"git cannot be run: {error.strerror}") from None
    if found.returncode != 0:
        raise Failed(f"git knows no commit {word!r} here: {found.stderr.strip()}")
    return found.stdout.strip().splitlines()[-1]


def pattern(text: str) -> str:
    """Return the text if it is a regular expression.

    Raises:
        Failed: it is none; without this, that would be told once both trees are built.
    """
    try:
        parse_filter(text)
    except ValueError as error:
        raise Failed(str(error)) from None
    return text


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check a commit out below build/, and remove it at the end."""
    place = ROOT / "build" / f"compare-{commit[:12]}-{os.getpid()}"
    try:
        run(["git", "worktree", "add", "--quiet", "--detach", str(place), commit], ROOT, _BUILD_S)
        yield place
    finally:
        with _undisturbed():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=False)


def run(command: Sequence[str], tree: Path, limit: float) -> None:
    """Run a command in a tree.

    Raises:
        Failed: it failed, or took longer than `limit` seconds; the text has the end of its output.
    """
    log = ROOT / "build" / "compare.log"
    log.parent.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_FOR_CHILDREN)}
    with log.open("w+", encoding="utf-8", errors="replace") as output:
        # In a group of its own, so that nothing of it still runs when the tree is removed.
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)} in {tree} took longer than {human_time(limit)}") from None
        finally:
            _end(process)
        if status != 0:
            output.seek(0)
            raise Failed(f"{' '.join(command)} failed in {tree}:\n{output.read()[-3000:].strip()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that still runs, and what it has started."""
    if process.poll() is not None:
        return
    with _undisturbed():
        for number in (signal.SIGINT, signal.SIGKILL):
            # The second one is for what has outlived the command.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore that a user wants it to end sooner: it ends now, and leaves nothing behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure(tree: Path, rows: str, file: Path) -> Report:
    """Measure the rows of a tree."""
    run([".venv/bin/zerohop", "bench", "--filter", rows, "--json", str(file)], tree, _BENCH_S)
    return read_report(file)


def measure_both(console: Console, commit: str, rows: str, rounds: int) -> list[Line]:
    """Build both trees, and measure them in turn; in each round the other one goes first."""
    reports: dict[Path, list[Report]] = {}
    file = ROOT / "build" / "compare.json"
    with worktree(commit) as base:
        for tree in (base, ROOT):
            console.print(f"building {escape(str(tree))}", soft_wrap=True)
            run(["make", "build"], tree, _BUILD_S)
            reports[tree] = []
        for number in range(rounds):
            for tree in (base, ROOT) if number % 2 == 0 else (ROOT, base):
                began = time.monotonic()
                reports[tree].append(measure(tree, rows, file))
                what = f"{len(reports[tree][-1].rows)} rows in {human_time(time.monotonic() - began)}"
                name = "this tree" if tree == ROOT else commit[:12]
                console.print(f"round {number + 1} of {rounds}: {name}: {what}")
        return compare(reports[base], reports[ROOT])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base", nargs="?", default="", help="the commit to compare with")
    parser.add_argument("--rows", default="", help="only rows whose text this regular expression is found in")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure each tree")
    arguments = parser.parse_args()
    console = make_console(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        commit, rows = commit_of(arguments.base), pattern(arguments.rows or ROWS)
        lines = measure_both(console, commit, rows, max(1, arguments.rounds))
    except (Failed, ValueError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("[bold red]interrupted[/]")
        return 130
    print_lines(make_console(), lines, commit[:12])
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
