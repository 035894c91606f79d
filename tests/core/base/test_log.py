"""ZEROHOP_LOG: what is said of peers, lanes and paths, on stderr, from the level that it names on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.patience import patience
from zerohop.core.base.log import LEVELS

_PROGRAM = """
import logging

import numpy as np

import zerohop as zh

with zh.Context(name="here") as here, zh.Context(name="there") as there:
    handle = there.alloc(8).share("w")
    ones = here.register(np.ones(8, np.uint8))
    here.write(ones, handle).result(10)
    here.write(ones, handle).result(10)
print(len(logging.getLogger("zerohop").handlers), len(logging.getLogger().handlers))
"""
LIMIT_S = patience(30)


def _run(level: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ZEROHOP_LOG"}
    if level is not None:
        environment["ZEROHOP_LOG"] = level
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )


def test_all_of_it() -> None:
    ran = _run("debug")
    assert ran.returncode == 0, ran.stderr
    assert "INFO zerohop: here: connected to there" in ran.stderr
    assert "INFO zerohop: there: connected to here" in ran.stderr
    assert "INFO zerohop: a lane over shm to" in ran.stderr
    assert ran.stderr.count("DEBUG zerohop: path: ") == 1, "once for each pair of memories"
    assert "INFO zerohop: here: there is gone: " in ran.stderr
    assert ran.stdout.split() == ["1", "0"], "two Contexts have one handler, and the program's own logging is its own"


def test_from_a_level_on() -> None:
    ran = _run(" Info ")
    assert "connected to there" in ran.stderr
    assert "DEBUG" not in ran.stderr


@pytest.mark.parametrize("level", ["warning", "error", "", None])
def test_nothing_is_wrong(level: str | None) -> None:
    ran = _run(level)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_no_level() -> None:
    ran = _run("verbose")
    assert ran.returncode == 1
    assert f"ValueError: ZEROHOP_LOG='verbose' is not understood: expected one of {', '.join(LEVELS)}" in ran.stderr
