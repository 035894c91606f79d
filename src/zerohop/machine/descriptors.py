"""Counts the descriptors of a server of files, which its doctor and its command compare with the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Counted on Linux 6.18: what a server's process has open without a client, what each client takes, and each file that
# clients have open: one descriptor goes through the page cache, the other past it.
OF_SERVER: Final = 25
OF_CLIENT: Final = 5
OF_FILE: Final = 2


def open_descriptors(proc: Path = Path("/proc")) -> int | None:
    """Return how many descriptors this process has open; None if that cannot be seen."""
    try:
        # The list of them takes one itself.
        return sum(1 for _ in (proc / "self/fd").iterdir()) - 1
    except OSError:
        return None
