"""How long tests wait for what should come at once, and how often they repeat what they can repeat.

Every limit of a test is long beside what it waits for, and is multiplied by one setting, ZEROHOP_TEST_PATIENCE: a
factor, 1 unless set. No limit is there to measure the machine; each is there to end a test whose event never comes.
"""

from __future__ import annotations

import os

LAB = "ZEROHOP_LAB" in os.environ
SETTING = float(os.environ.get("ZEROHOP_TEST_PATIENCE", "1"))
# In the lab's guest everything takes longer: ten times and more.
_SCALE = SETTING * (4 if LAB else 1)


def patience(seconds: float) -> float:
    """Return a limit in seconds, multiplied by the setting, and by 4 in the lab."""
    return seconds * _SCALE


# How long the other side waits for what must come; a test's own limit is longer.
PATIENCE_S = patience(8.0)
# How long a test waits for the other side: longer than anything that it does, shorter than the limit of a test.
ANSWER_S = patience(15.0)


def times(count: int) -> int:
    """Return how often a test repeats what it may also do less often, in the lab."""
    return max(3, count // 8) if LAB else count
