"""Makes the deadlines of a group's operations, in nanoseconds of the monotonic clock; 0 stands for none."""

from __future__ import annotations

import math
import time
from typing import Any, Final

# The search for a rank, and what follows, keep a deadline by themselves, with errors that name the rank. An operation
# ends without them only if a busy machine holds them up for longer than this.
_GRACE_NS: Final = 2 * 10**9


def deadline_of(core: Any, own_s: float | None, timeout: float | None) -> int:
    """Return the deadline of a call of a group with a timeout of its own, on the monotonic clock; 0: none."""
    deadline: int = core.deadline(own_s if timeout is None else timeout)
    return deadline


def with_grace(deadline_ns: int) -> int:
    """Return a later deadline; 0 stands for none."""
    return deadline_ns + _GRACE_NS if deadline_ns else 0


def left_s(deadline_ns: int) -> float:
    """Return the seconds until a deadline on the monotonic clock; 0 stands for none."""
    return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9) if deadline_ns else math.inf
