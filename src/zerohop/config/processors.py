"""Tells which processors this process may use."""

from __future__ import annotations

import os


def usable_processors() -> set[int]:
    """Return the numbers of the processors that this process may use; those of all where a sandbox does not tell."""
    try:
        return os.sched_getaffinity(0)
    except OSError:
        return set(range(os.cpu_count() or 1))
