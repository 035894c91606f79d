"""How long a test waits for what should come at once, and how often it repeats what it can repeat."""

from __future__ import annotations

import os

# In the lab's guest everything takes longer: ten times and more.
LAB = "ZEROHOP_LAB" in os.environ
_SCALE = 4 if LAB else 1
# How long the other side waits for what must come; a test's own limit is longer.
PATIENCE_S = 8.0 * _SCALE
# How long a test waits for the other side: longer than anything that it does, shorter than the limit of a test.
ANSWER_S = 15.0 * _SCALE


def times(count: int) -> int:
    """How often a test repeats what it may also do less often, in the lab."""
    return max(3, count // 8) if LAB else count
