"""How long a test waits for what should come at once."""

from __future__ import annotations

import os

# In the lab's guest everything takes longer.
_SCALE = 4 if "ZEROHOP_LAB" in os.environ else 1
# How long the other side waits for what must come; a test's own limit is longer.
PATIENCE_S = 8.0 * _SCALE
# How long a test waits for the other side: longer than anything that it does, shorter than the limit of a test.
ANSWER_S = 15.0 * _SCALE
