"""Logs to Python's logger "zerohop", and to stderr if ``ZEROHOP_LOG`` names a level.

``warning``: problems that cost speed or need a repair; ``info``: also peers and lanes that come and go; ``debug``: also
the path of each pair of memories.
"""

from __future__ import annotations

import logging
import os
from typing import Final

VARIABLE: Final = "ZEROHOP_LOG"
LEVELS: Final = ("debug", "info", "warning", "error")
logger: Final = logging.getLogger("zerohop")


def begin() -> None:
    """Log to stderr if the environment names a level; otherwise the program's own logging decides. Idempotent.

    Raises:
        ValueError: the environment names no level that exists.
    """
    level = os.environ.get(VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in LEVELS:
        raise ValueError(f"{VARIABLE}={level!r} is not understood: expected one of {', '.join(LEVELS)}")
    logger.setLevel(level.upper())
    if not any(handler.name == VARIABLE for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.name = VARIABLE
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
