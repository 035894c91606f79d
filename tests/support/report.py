"""Writes the findings of a run of pytest as a line of JSON, for the tools that count tests and run them again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

# Environment variable that names the file; each run adds a line to it.
FILE = "ZEROHOP_TEST_REPORT"
_SLOWEST = 5
# The name that pytest-xdist gives to the phase of a test whose process has died.
_DIED = "???"


class Report:
    """Collects outcomes and times. Under pytest-xdist the process that starts the workers sees all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._died: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)
            if report.when == _DIED:
                self._died.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the line.

        It has the number of tests that passed, the names of those that failed, of these the ones whose process died,
        and the slowest with their seconds.
        """
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        line: dict[str, Any] = {
            "passed": len(self._passed - self._failed),
            "failed": sorted(self._failed),
            "died": sorted(self._died),
            "slowest": [[round(seconds, 2), name] for name, seconds in slowest],
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def register(config: pytest.Config) -> None:
    """Report on this run where the environment names a file, but not from each worker of pytest-xdist."""
    # Taken out of the environment: a test may start pytest itself.
    path = os.environ.pop(FILE, None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(Path(path)))
