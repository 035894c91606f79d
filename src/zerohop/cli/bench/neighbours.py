"""Measures how busy other processes kept the machine during a run: then the numbers say little about the library."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

NOISY: Final = 0.1  # a run is not called quiet if others use this many processors or more
_IDLE, _WAITING = 3, 4  # fields of /proc/stat


class Neighbours:
    """Measures the processor time that others use from now on. Children of this process count once they have ended."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """Take the first reading."""
        self._stat = stat
        self._started = time.monotonic()
        self._busy_at_first = self._busy()

    def processors(self) -> float | None:
        """Return the average number of processors that others kept busy; None if the kernel does not say."""
        busy = self._busy()
        if busy is None or self._busy_at_first is None:
            return None
        return round(max(0.0, busy - self._busy_at_first) / max(0.01, time.monotonic() - self._started), 3)

    def _busy(self) -> float | None:
        """Return the seconds that others used, or the hypervisor took, since the machine started."""
        try:
            ticks = [int(word) for word in self._stat.read_text("ascii").splitlines()[0].split()[1:9]]
        except (OSError, ValueError, IndexError):
            return None
        used = (sum(ticks) - ticks[_IDLE] - ticks[_WAITING]) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return used - own.user - own.system - own.children_user - own.children_system
