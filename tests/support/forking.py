"""A piece of a test in a forked child."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
import warnings
from typing import TYPE_CHECKING

from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable

CHILD_S = patience(10.0)


def in_child(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child, or the traceback of what it raised. The child never returns from here;
    one that hangs is killed, which is an AssertionError."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of forking a process with threads, which is what is to be tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                said = work()
            except BaseException:
                said = traceback.format_exc()
            os.write(writer, pickle.dumps(said))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        if not select.select([reader], [], [], CHILD_S)[0]:
            os.kill(child, signal.SIGKILL)
            raise AssertionError(f"the forked child said nothing within {CHILD_S} s")
        raw = os.read(reader, 1 << 16)
        assert raw, "the forked child died"
        answer: str = pickle.loads(raw)
        return answer
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
