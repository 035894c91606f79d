"""Runs the Python tests that a marker expression selects: most in parallel, those that mind a neighbour alone.

Usage: run_tests.py [--jobs N] [--hang SECONDS] -m EXPRESSION [PYTEST ARGUMENT…]

A test that hangs in native code, where pytest-timeout does not reach it, has its process ended after SECONDS, which
are more than any test's own limit. Tests marked `alone` run after the others, one at a time.

With ZEROHOP_TEST_AGAIN=N in the environment each failed test is run again by itself, at most N times. A test that
passes then is flaky: it does not fail the run, and its name is added to the file that ZEROHOP_TEST_FLAKY names. Many
failures are no chance, and none is run again; nor is any after a test has ended its process by a crash or a hang.
ZEROHOP_TEST_REPORT names a file to which each run adds a line of JSON (tests/support/report.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# More failures than this have a common cause, which a second run does not find.
_MOST_FAILURES = 10
_REPORT_EVERY_S = 20
# Exit codes of pytest: some tests failed; no test was selected.
_SOME_FAILED, _NONE_SELECTED = 1, 5


def append(setting: str, line: str) -> None:
    """Add a line to the file that this variable of the environment names, if it is set."""
    path = os.environ.get(setting)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line.rstrip("\n") + "\n")


def run_again(failed: list[str], passes: Callable[[str], bool], prefix: str = "") -> bool:
    """Run each of these tests by itself, as often as the environment says; return whether all of them passed."""
    times = int(os.environ.get("ZEROHOP_TEST_AGAIN", "0"))
    if len(failed) > _MOST_FAILURES:
        return False
    flaky = []
    for name in failed:
        print(f"--- again, alone, {times} times at most: {name}", flush=True)
        if any(passes(name) for _ in range(times)):
            flaky.append(name)
            append("ZEROHOP_TEST_FLAKY", prefix + name)
    return flaky == failed


class Run:
    """Runs pytest once, and holds its results."""

    def __init__(self, arguments: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report"
            command = [sys.executable, "-m", "pytest", "-q", *arguments]
            environment = {**os.environ, "ZEROHOP_TEST_REPORT": str(path)}
            self.status = self._wait(subprocess.Popen(command, env=environment))
            self.report = path.read_text(encoding="utf-8") if path.exists() else ""
        found: dict[str, Any] = json.loads(self.report or '{"passed": 0, "failed": [], "died": []}')
        self.failed: list[str] = found["failed"]
        self.died: list[str] = found["died"]
        # A test that is skipped when it runs alone has not passed.
        self.passed = self.status == 0 and found["passed"] > 0
        self.broken = self.status not in (0, _NONE_SELECTED) and not (self.status == _SOME_FAILED and self.failed)

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int:
        """Wait for the end, and print a sign of life now and then: pytest prints nothing during a long test."""
        began = time.monotonic()
        while True:
            try:
                return process.wait(_REPORT_EVERY_S)
            except subprocess.TimeoutExpired:
                print(f"\nzerohop: testing for {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--jobs", type=int, default=min(8, (os.cpu_count() or 1) + 1))
    parser.add_argument("--hang", type=float, default=320)
    parser.add_argument("-m", dest="expression", required=True)
    options, arguments = parser.parse_known_args()
    # A test past its own limit fails. One that hangs in native code, where no limit reaches it, ends its process with
    # all stacks, which pytest-xdist reports as a failure of that test.
    hang = options.hang * float(os.environ.get("ZEROHOP_TEST_PATIENCE", "1"))
    always = ["-o", "faulthandler_exit_on_timeout=true", "-o", f"faulthandler_timeout={hang}"]
    selections: list[tuple[str, list[str]]] = [(options.expression, [])]
    if options.jobs > 1:
        parallel = ["-n", str(options.jobs), "--dist", "worksteal"]
        selections = [(f"({options.expression}) and not alone", parallel), (f"({options.expression}) and alone", [])]
    runs = [Run([*always, *how, "-m", which, *arguments]) for which, how in selections]

    for run in runs:
        if run.report:
            append("ZEROHOP_TEST_REPORT", run.report)
    # A part may contain no test of a suite.
    if all(run.status == _NONE_SELECTED for run in runs):
        in_part = os.environ.get("ZEROHOP_TEST_SLICE") or os.environ.get("ZEROHOP_TEST_PART")
        return 0 if in_part else _NONE_SELECTED
    broken = [run.status for run in runs if run.broken]
    if broken:
        return broken[0]
    died = [name for run in runs for name in run.died]
    if died:
        print(f"--- these ended their process, and nothing is run again: {', '.join(died)}", flush=True)
        return _SOME_FAILED
    failed = [name for run in runs for name in run.failed]
    return 0 if run_again(failed, lambda name: Run([*always, name]).passed) else _SOME_FAILED


if __name__ == "__main__":
    sys.exit(main())
