"""The Context that all of a process share, for libraries that know none of their own."""

from __future__ import annotations

import os
import threading

from zerohop.core.context import Context


class _Process:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.context: Context | None = None


_process = _Process()


def shared_context() -> Context:
    """Opened at first use, with the environment's settings; closed when the interpreter exits.

    Raises:
        ValueError: a variable of the environment makes no sense.
        ZerohopError: as Context has them.
    """
    with _process.lock:
        if _process.context is None:
            _process.context = Context()
        return _process.context


def _reset_after_fork() -> None:
    """A forked child makes its own, and none of its parent's threads is there to give a lock back."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_reset_after_fork)
