"""Output that goes nowhere: the command ends with a code other than 0, in one line at most, and without a traceback."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cli.command import zerohop

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS: list[tuple[str, ...]] = [
    ("--help",),
    ("--version",),
    ("info",),
    ("info", "--json"),
    ("info", "--topology"),
    ("info", "--topology", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("demo",),
    ("bench", "import", "--quick"),
    ("bench", "import", "--quick", "--json", "-"),
]


def _full_disk() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _no_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


@pytest.mark.parametrize(
    ("place", "why"),
    [(lambda: os.close(1), "it is closed"), (_full_disk, "No space left on device")],
    ids=["closed", "full disk"],
)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_it_cannot_be_written(command: tuple[str, ...], place: Callable[[], None], why: str) -> None:
    run = zerohop(*command, preexec=place)
    assert run.returncode == 2
    said = run.stderr.splitlines()
    # A benchmark tells its rows there, too.
    assert said[-1 if "bench" in command else 0 :] == [
        f"error: cannot write to standard output: {why}. Fix: send it elsewhere"
    ]


@pytest.mark.parametrize("command", [each for each in COMMANDS if "bench" not in each], ids=" ".join)
def test_nobody_reads_it(command: tuple[str, ...]) -> None:
    """As of `zerohop info | head -1`."""
    run = zerohop(*command, preexec=_no_reader)
    assert (run.returncode, run.stderr) == (1, "")


@pytest.mark.parametrize("command", [("info",), ("bench", "import", "--quick")], ids=" ".join)
def test_without_standard_error(command: tuple[str, ...]) -> None:
    """Run as ever where standard error is closed, and say nothing there."""
    run = zerohop(*command, preexec=lambda: os.close(2))
    assert run.returncode == 0
    assert run.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [("demo",), ("bench", "--help")], ids=" ".join)
def test_an_encoding_without_arrows(command: tuple[str, ...], encoding: str) -> None:
    run = zerohop(*command, encoding=encoding, PYTHONIOENCODING=encoding)
    assert (run.returncode, run.stderr) == (0, "")
    assert "?" in run.stdout


def test_the_plainest_locale() -> None:
    """There, Python's text keeps odd bytes of names, and knows no arrows either."""
    run = zerohop("demo", encoding="ascii", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (run.returncode, run.stderr) == (0, "")
    assert "?" in run.stdout
