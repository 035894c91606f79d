"""Tests that take long say so while they run, so that nobody takes them for stuck: neither people nor faulthandler."""

from __future__ import annotations

import faulthandler
import os
import threading
from typing import TYPE_CHECKING

import pytest

from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Generator

SAID_EVERY_S = 20.0
# What has no longer limit is over before anybody wonders.
_SHORT_S = patience(30.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    limit = item.get_closest_marker("timeout")
    if limit is None or limit.args[0] <= _SHORT_S:
        return (yield)
    # The Makefile has it end the whole run, after a time that is meant for tests without a limit of their own.
    guarded = bool(float(item.config.getini("faulthandler_timeout") or 0))
    over = threading.Event()
    # What pytest itself writes to; while the test runs, descriptor 1 is a file.
    out = os.dup(1)

    def say() -> None:
        seconds = 0.0
        while not over.wait(SAID_EVERY_S):
            if guarded and not seconds:
                faulthandler.dump_traceback_later(limit.args[0] + _SHORT_S, exit=True, file=out)
            seconds += SAID_EVERY_S
            os.write(out, f"\n{item.nodeid}, for {seconds:.0f} s\n".encode())

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        return (yield)
    finally:
        over.set()
        thread.join()
        if guarded:
            faulthandler.cancel_dump_traceback_later()
        os.close(out)
