"""`make bench-compare`: the table of two trees, from recorded outputs, and what it refuses before it builds."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_compare import Failed, Line, compare, pattern, print_lines
from bench_tables import read_report
from rich.console import Console

from support.patience import patience

RECORDED = Path(__file__).parent / "recorded"
SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_compare.py"
BASE, THIS = (read_report(RECORDED / f"bench_{tree}.json") for tree in ("base", "this"))


def test_rows_of_two_trees() -> None:
    lines = {line.row: line for line in compare([BASE], [THIS])}
    assert lines["write shm mapped 8 KiB"] == Line("write shm mapped 8 KiB", (0.82,), (0.84,))
    assert {row: line.verdict for row, line in lines.items()} == {
        "write shm mapped 8 KiB": "",
        "write shm ring 8 KiB": "faster",
        "read shm mapped 8 KiB": "slower",
        "first_use shm ring 4 KiB": "only in this tree",
        "import": "only in the base",
    }
    assert "idle" in {row.name for row in THIS.rows}  # which has no median


def test_the_table() -> None:
    """Rows that are apart are told with the medians of every round."""
    slow = replace(THIS, rows=tuple(replace(row, p50_us=3.0) for row in THIS.rows if row.form == "ring"))
    output = io.StringIO()
    print_lines(Console(file=output, width=200, color_system=None), compare([BASE, BASE], [THIS, slow]), "abc123")
    lines = output.getvalue().splitlines()
    assert lines[0].split() == ["row", "abc123", "this", "tree", "ratio"]
    assert " ".join(lines[1].split()) == "write shm mapped 8 KiB 820 ns 840 ns 1.02 ×"
    assert " ".join(lines[3].split()) == "read shm mapped 8 KiB 900 ns 1.2 µs 1.33 × slower"
    assert "2 of 5 rows are more than 10% apart" in lines
    assert lines[-2:] == [
        "faster: write shm ring 8 KiB: abc123 2 µs, 2 µs; this tree 1.5 µs, 3 µs",
        "slower: read shm mapped 8 KiB: abc123 900 ns, 900 ns; this tree 1.2 µs",
    ]


@pytest.mark.parametrize(("times", "verdict"), [(1.1, ""), (1.11, "slower"), (0.91, ""), (0.9, "faster")])
def test_a_tenth_in_either_direction(times: float, verdict: str) -> None:
    assert Line("row", (10.0,), (10.0 * times,)).verdict == verdict


def test_the_median_of_the_rounds_counts() -> None:
    assert Line("row", (9.0, 10.0, 99.0), (10.0, 1.0, 11.0)).ratio == 1.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([""], "which commit is the base?"),
        (["no-such-commit"], "git knows no commit 'no-such-commit' here: fatal: "),
        (["--", "--help"], "git knows no commit '--help' here: fatal: "),
    ],
)
def test_a_base_that_is_none(arguments: list[str], told: str) -> None:
    """Is told before anything is built."""
    run = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=patience(30), check=False
    )
    assert run.returncode == 2
    assert told in run.stderr
    assert "Traceback" not in run.stderr


def test_rows_that_are_no_pattern() -> None:
    with pytest.raises(Failed, match="no regular expression"):
        pattern("(")
