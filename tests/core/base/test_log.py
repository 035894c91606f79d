"""ZEROHOP_LOG: what is said of peers, lanes and paths, on stderr, from the level that it names on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.patience import patience
from zerohop.core.base.log import LEVELS, WarnOnce

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert re.search(r"INFO zerohop: here: connected to 'there' \([0-9a-f]{32}\)\n", ran.stderr)
    assert re.search(r"INFO zerohop: there: connected to 'here' \([0-9a-f]{32}\)\n", ran.stderr)
    assert "INFO zerohop: a lane over shm to" in ran.stderr
    assert ran.stderr.count("DEBUG zerohop: path: ") == 1, "once for each pair of memories"
    assert re.search(r"INFO zerohop: here: 'there' \([0-9a-f]{32}\) is gone: ", ran.stderr)
    assert ran.stdout.split() == ["1", "0"], "two Contexts have one handler, and the program's own logging is its own"


def test_from_a_level_on() -> None:
    ran = _run(" Info ")
    assert "connected to 'there'" in ran.stderr
    assert "DEBUG" not in ran.stderr


@pytest.mark.parametrize("level", ["warning", "error", "", None])
def test_nothing_is_wrong(level: str | None) -> None:
    ran = _run(level)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_no_level() -> None:
    ran = _run("verbose")
    assert ran.returncode == 1
    assert f"ValueError: ZEROHOP_LOG='verbose' is not understood: expected one of {', '.join(LEVELS)}" in ran.stderr


class TestWarnings:
    """What peers do is warned of once per peer, and each topic at a rate of its own."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        return now

    def test_once_per_peer_and_topic(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        warn = WarnOnce()
        for _ in range(3):
            for who in ("one", "two"):
                warn(who, "secret", "refused %s", who)
                warn(who, "timeout", "%s was silent", who)
        assert sorted(caplog.messages) == ["one was silent", "refused one", "refused two", "two was silent"]

    def test_many_peers_do_not_silence_other_topics(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        """Nor their own for long; how many were left out is said."""
        warn = WarnOnce()
        for number in range(1000):
            warn(f"10.0.{number // 256}.{number % 256}", "secret", "refused %s", number)
        filled = len(caplog.messages)
        assert filled < 50, "nobody outside can fill a log"
        warn("a friend", "protocol", "disconnected %s", "a friend")
        assert caplog.messages[-1] == "disconnected a friend"
        clock[0] += 60
        warn("10.1.0.0", "secret", "refused %s", "the next")
        assert caplog.messages[-1] == f"refused the next (and {1000 - filled} more that were not logged)"
        warn("10.1.0.1", "secret", "refused %s", "the one after")
        assert caplog.messages[-1] == "refused the one after"

    def test_the_last_one_comes_when_there_is_room(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        """So how many were left out is said, also where no other warning follows; and the rate holds."""
        timers: list[tuple[float, Callable[[], None]]] = []
        warn = WarnOnce(lambda seconds, call: timers.append((clock[0] + seconds, call)))
        for number in range(40):
            warn(str(number), "secret", "refused %s", number)
        warn("39", "secret", "refused it again")
        assert (len(caplog.messages), len(timers)) == (16, 1)
        clock[0] += 1
        warn("40", "secret", "refused %s", 40)
        assert (len(caplog.messages), len(timers)) == (16, 1)
        clock[0], call = timers.pop()
        call()
        assert caplog.messages[16:] == ["refused 40 (and 24 more that were not logged)"]
        assert not timers

    def test_a_peer_that_is_left_out_counts_once(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        warn = WarnOnce()
        for _ in range(100):
            for number in range(40):
                warn(str(number), "secret", "refused %s", number)
        warn.finish()
        assert caplog.messages[-1] == "refused 39 (and 23 more that were not logged)"

    def test_what_waits_at_the_end_is_logged(self, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
        warn = WarnOnce()
        for number in range(40):
            warn(str(number), "secret", "refused %s", number)
        warn.finish()
        assert caplog.messages[-1] == "refused 39 (and 23 more that were not logged)"
        assert len(caplog.messages) == 17
        warn.finish()
        assert len(caplog.messages) == 17

    def test_a_bounded_memory(self, clock: list[float]) -> None:
        """However many there are, in whatever time."""
        warn = WarnOnce()
        for number in range(2000):
            clock[0] += 60
            warn(str(number), "secret", "refused")
        assert len(warn._topics["secret"]._said) < 1000
