"""The runner of the tests: what fails by chance is told apart from what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
# The second time that it is called it passes; a file says that it was called.
ONCE = """
import pathlib

def test_once():
    mark = pathlib.Path(__file__).with_name("called")
    called = mark.exists()
    mark.touch()
    assert called
"""
# The second time that it is called it is skipped.
THEN_SKIPPED = ONCE.replace("    mark.touch()", "    if called:\n        pytest.skip('')\n    mark.touch()").replace(
    "import pathlib", "import pathlib\nimport pytest"
)
# The second time that it is called it passes; the first time its process dies.
DIES_ONCE = ONCE.replace("    assert called", "    if not called:\n        os.abort()").replace(
    "import pathlib", "import os\nimport pathlib"
)
ALWAYS = "def test_always():\n    raise AssertionError\n"
RIGHT = "def test_right():\n    pass\n"
# It fails where another test runs in the same process.
ALONE = """
import pytest

@pytest.mark.alone
def test_alone(request):
    assert len(request.session.items) == 1
"""


class Ran(NamedTuple):
    """How a run ended, the reports of its runs of pytest, and the tests that it calls flaky."""

    status: int
    reports: list[dict[str, object]]
    flaky: list[str]
    output: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Returns a function that runs tests of this text with scripts/run_tests.py, as .ci/run does."""
    for setting in ("PART", "SLICE", "PATIENCE"):  # of the run that this test belongs to
        monkeypatch.delenv(f"ZEROHOP_TEST_{setting}", raising=False)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\nmarkers =\n    alone: alone\n")
    (tmp_path / "conftest.py").write_text("from support.report import register as pytest_configure\n")

    def run_text(text: str, *arguments: str, again: int = 2) -> Ran:
        (tmp_path / "test_it.py").write_text(text)
        report, flaky = tmp_path / "report", tmp_path / "flaky"
        command = [sys.executable, str(ROOT / "scripts" / "run_tests.py"), "-m", "not slow", *arguments, "test_it.py"]
        ours = {"ZEROHOP_TEST_REPORT": str(report), "ZEROHOP_TEST_FLAKY": str(flaky), "ZEROHOP_TEST_AGAIN": str(again)}
        environment = {**os.environ, **ours, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return Ran(
            ran.returncode,
            [json.loads(line) for line in report.read_text().splitlines()],
            flaky.read_text().splitlines() if flaky.exists() else [],
            ran.stdout + ran.stderr,
        )

    return run_text


def test_what_passes(run: Callable[..., Ran]) -> None:
    ran = run(RIGHT, "--jobs", "1")
    assert (ran.status, ran.flaky) == (0, []), ran.output
    [report] = ran.reports
    assert (report["passed"], report["failed"]) == (1, [])
    assert "test_it.py::test_right" in str(report["slowest"])


def test_what_passes_the_second_time(run: Callable[..., Ran]) -> None:
    ran = run(ONCE + RIGHT, "--jobs", "2")
    assert (ran.status, ran.flaky) == (0, ["test_it.py::test_once"]), ran.output
    assert ran.reports[0]["failed"] == ["test_it.py::test_once"]


def test_what_fails_each_time(run: Callable[..., Ran]) -> None:
    ran = run(ONCE + ALWAYS, "--jobs", "1")
    assert (ran.status, ran.flaky) == (1, ["test_it.py::test_once"]), ran.output
    assert ran.output.count("1 failed") == 3 - 1  # both fail together at first


def test_what_is_skipped_alone_has_not_passed(run: Callable[..., Ran]) -> None:
    ran = run(THEN_SKIPPED, "--jobs", "1")
    assert (ran.status, ran.flaky) == (1, []), ran.output


def test_what_ends_its_process_is_no_chance(run: Callable[..., Ran]) -> None:
    ran = run(DIES_ONCE + RIGHT, "--jobs", "2")
    assert (ran.status, ran.flaky) == (1, []), ran.output
    assert ran.reports[0]["died"] == ["test_it.py::test_once"]
    assert "ended their process" in ran.output


def test_nothing_runs_again_unless_asked_for(run: Callable[..., Ran]) -> None:
    ran = run(ONCE, "--jobs", "1", again=0)
    assert (ran.status, ran.flaky) == (1, []), ran.output


def test_many_failures_are_no_chance(run: Callable[..., Ran]) -> None:
    ran = run("\n".join(ALWAYS.replace("always", f"always_{i}") for i in range(11)), "--jobs", "1")
    assert (ran.status, ran.flaky) == (1, []), ran.output
    assert ran.output.count("failed in") == 1


def test_what_minds_a_neighbour(run: Callable[..., Ran]) -> None:
    ran = run(ALONE + RIGHT, "--jobs", "2")
    assert ran.status == 0, ran.output
    assert [report["passed"] for report in ran.reports] == [1, 1]


def test_each_test_is_in_one_part(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("from support.selection import pytest_collection_modifyitems\n")
    text = "\n".join(RIGHT.replace("right", f"right_{i}") for i in range(9))
    passed = []
    for part in "12":
        monkeypatch.setenv("ZEROHOP_TEST_PART", f"{part}/2")
        ran = run(text, "--jobs", "1")
        assert ran.status == 0, ran.output
        passed.append(int(str(ran.reports[-1]["passed"])))
    assert 0 not in passed
    assert sum(passed) == 9


def test_what_cannot_be_collected(run: Callable[..., Ran]) -> None:
    """It is an error, and no test that may run again."""
    ran = run("import nothing_of_this_name\n", "--jobs", "1")
    assert ran.status not in (0, 5), ran.output
    assert "again" not in ran.output
