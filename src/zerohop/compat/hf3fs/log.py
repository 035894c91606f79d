"""Logs to Python's logger "zerohop.hf3fs": as ``HF3FS_USRBIO_LIB_LOG`` says where that is set."""

from __future__ import annotations

import functools
import logging
import os
from typing import Final

from zerohop.shown import shown

VARIABLE: Final = "HF3FS_USRBIO_LIB_LOG"
logger: Final = logging.getLogger("zerohop.hf3fs")
# The names of 3FS's own logging, and Python's.
_LEVELS: Final = {
    "DBG": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERR": logging.ERROR,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "FATAL": logging.CRITICAL,
}


@functools.cache
def begin() -> None:
    """Read the variable, once per process: the level, and stderr if the program has no logging of its own.

    Raises:
        ValueError: it names no level.
    """
    level = os.environ.get(VARIABLE, "").strip().upper()
    if not level:
        return
    if level not in _LEVELS:
        raise ValueError(f"{VARIABLE}={shown(level)} is not understood: expected one of {', '.join(_LEVELS)}")
    logger.setLevel(_LEVELS[level])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
