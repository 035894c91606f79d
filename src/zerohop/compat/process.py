"""Holds the one Context of this process, for APIs that have no Context of their own."""

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
    """Return the process's Context. It opens at first use, from the environment's settings, and closes at exit.

    Raises:
        ValueError: a variable of the environment makes no sense.
        ZerohopError: as for Context.
    """
    with _process.lock:
        if _process.context is None:
            _process.context = Context()
        return _process.context


def _reset_after_fork() -> None:
    """Reset the state in a forked child: the Context and a held lock belong to threads of the parent."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_reset_after_fork)
