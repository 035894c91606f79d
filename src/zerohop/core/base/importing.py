"""Lets no thread fork while this library imports modules.

A child has only half of a module that another thread was importing, and its lock for ever. Modules that
`import zerohop` alone does not need are imported as ``with importing(): import ...``, and a fork waits for the block.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Reentrant, because what is imported may fork, and so may a signal's handler in the middle of it.
_lock = threading.RLock()


def importing() -> AbstractContextManager[bool]:
    """Return a context manager for imports; a fork of another thread waits for its end."""
    return _lock


def hold_off_forks() -> None:
    """Have forks wait for imports before they wait for any lock whose handlers were registered until now."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_renew)


def _before_fork() -> None:
    _lock.acquire()


def _after_fork() -> None:
    try:
        _lock.release()
    except RuntimeError:  # a signal's handler has ended the wait for it
        pass


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


hold_off_forks()
