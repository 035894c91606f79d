"""Runs all checks that must pass before a change goes in, from a clean checkout, with the README's make targets.

Usage: ci.py [STEP…]. Needs apt and PyPI. Every step runs even if an earlier one failed. The end of the output is a
table of the time of each step, the tests that passed only when run again (FLAKY), the last lines of each step that
failed, and the number of failed steps.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "ci"
FLAKY = OUT / "flaky"
# The limit is for a step that hangs. It is some three times the step's duration on two quiet processors.
_KILL_AFTER_S = 30
_LAST_LINES = 12
# Each run takes one part of the long checks, by chance: parts in turn could fall in step with the hours of the runs.
SLICE = f"{random.randrange(16) + 1}/16"
# Steps that repeat tests of `make test` in another setting take one of four parts.
PART = f"{random.randrange(4) + 1}/4"


class Step(NamedTuple):
    """Holds a command with its limit in seconds. A step beside the others gets only otherwise idle processor time."""

    name: str
    limit: int
    command: str
    beside: bool = False


STEPS = (
    Step("build", 900, "make build"),
    Step("extras", 1200, "scripts/ci_extras.sh"),
    Step("lint", 4800, f"make lint DEEP={SLICE}", beside=True),
    Step("test", 1800, "make test"),
    Step("demo", 300, "make demo"),
    Step("wheel", 300, "make wheel"),
    Step("bench", 600, "scripts/bench_smoke.sh"),
    Step("plain-user", 900, f"make test-plain-user PART={PART}"),
    Step("asan", 1500, f"make test-asan PART={PART}"),
    Step("tsan", 1500, f"make test-tsan PART={PART}"),
    Step("lab", 1800, f"make lab SLICE={SLICE} PART={PART}"),
    Step("slow", 1200, f"make test-slow SLICE={SLICE}"),
    Step("fuzz", 300, "make fuzz FUZZ_SECONDS=30"),
)


class Running:
    """Runs a step, from its start on."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.report = OUT / f"{step.name}.report"
        self._log = OUT / f"{step.name}.log"
        self._began = time.monotonic()
        command = ["timeout", f"--kill-after={_KILL_AFTER_S}", str(step.limit), *step.command.split()]
        if step.beside and shutil.which("chrt"):
            command = ["chrt", "--idle", "0", *command]
        print(f"=== {step.name}: {step.command}{' (beside the others)' if step.beside else ''}", flush=True)
        environment = {**os.environ, "ZEROHOP_TEST_REPORT": str(self.report), "ZEROHOP_TEST_FLAKY": str(FLAKY)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self) -> None:
        """Wait for its end while its output is shown, and report it."""
        if self.step.beside:
            print(f"=== {self.step.name}", flush=True)
        # The log is read as it grows. A pipe would stay open for as long as a process that the step left behind.
        with self._log.open("rb") as log:
            status = None
            while status is None:
                status = self._wait_a_moment()
                sys.stdout.buffer.write(log.read())
                sys.stdout.buffer.flush()
        self.seconds = time.monotonic() - self._began
        outcome = "ok" if status == 0 else f"failed ({status})"
        print(f"=== {self.step.name}: {outcome} after {self.seconds:.0f} s", flush=True)
        self.ok = status == 0

    def _wait_a_moment(self) -> int | None:
        """Return the exit status, or None if the step still runs after half a second."""
        try:
            return self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return None

    def last_lines(self) -> str:
        """Return the end of its output."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])

    def tests(self) -> tuple[int, list[tuple[float, str]]]:
        """Return the number of passed tests, and the slowest five."""
        lines = self.report.read_text(encoding="utf-8").splitlines() if self.report.exists() else []
        found = [json.loads(line) for line in lines]
        slowest = sorted(((seconds, name) for line in found for seconds, name in line["slowest"]), reverse=True)
        return sum(line["passed"] for line in found), slowest[:5]


def table(ran: list[Running]) -> None:
    """Print the time of each step, its number of tests, and the slowest of them."""
    print(f"\n{'step':<12}{'seconds':>9}{'tests':>8}  slowest five tests, in seconds")
    for running in ran:
        passed, slowest = running.tests()
        told = [f"{seconds:.1f} {name}" for seconds, name in slowest] or [""]
        print(f"{running.step.name:<12}{running.seconds:>9.0f}{passed or '':>8}  {told[0]}")
        for line in told[1:]:
            print(f"{'':<29}  {line}")


def main() -> int:
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    os.environ |= {"ZEROHOP_WERROR": "ON", "PYTHONUNBUFFERED": "1"}
    os.environ.setdefault("ZEROHOP_TEST_PATIENCE", "3")
    os.environ.setdefault("ZEROHOP_TEST_AGAIN", "2")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    began = time.monotonic()
    steps = [step for step in STEPS if len(sys.argv) == 1 or step.name in sys.argv[1:]]
    ran, beside = [], []
    for step in steps:
        running = Running(step)
        if step.beside:
            beside.append(running)
            continue
        running.finish()
        ran.append(running)
    for running in beside:
        running.finish()
        ran.append(running)

    table(ran)
    print(f"{'whole':<12}{time.monotonic() - began:>9.0f}")
    if FLAKY.exists():
        print("\nFLAKY: these failed and then passed alone. Find the cause, in the product before the test:")
        print(FLAKY.read_text(encoding="utf-8"), end="")
    for running in ran:
        if not running.ok:
            print(f"\nthe last lines of {running.step.name}, which failed:\n{running.last_lines()}")
    failed = [running.step.name for running in ran if not running.ok]
    print(f"failed steps: {' '.join(failed)}" if failed else "")
    print(f"{len(ran) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
