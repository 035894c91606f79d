"""Logs to Python's logger "zerohop", and to stderr if ``ZEROHOP_LOG`` names a level.

``warning``: problems that cost speed or need a repair; ``info``: also peers and lanes that come and go; ``debug``: also
the path of each pair of memories.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from typing import Final

from zerohop.core.base.importing import hold_off_forks
from zerohop.shown import shown

# logging holds a lock of its own over a fork. It is taken after that of imports, which may ask for a logger.
hold_off_forks()

VARIABLE: Final = "ZEROHOP_LOG"
LEVELS: Final = ("debug", "info", "warning", "error")
logger: Final = logging.getLogger("zerohop")
# Warnings of one topic that may come at once, and seconds after which another may come.
_BURST: Final = 16
_PAUSE_S: Final = 10.0
# Number of keys of one topic that are remembered.
_KEYS: Final = 256


def begin() -> None:
    """Log to stderr if the environment names a level; otherwise the program's own logging decides. Idempotent.

    Raises:
        ValueError: the environment names no level that exists.
    """
    level = os.environ.get(VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in LEVELS:
        raise ValueError(f"{VARIABLE}={shown(level)} is not understood: expected one of {', '.join(LEVELS)}")
    logger.setLevel(level.upper())
    if not any(handler.name == VARIABLE for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.name = VARIABLE
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def is_debugging() -> bool:
    """Tell whether everything is logged."""
    return logger.isEnabledFor(logging.DEBUG)


class WarnOnce:
    """Logs warnings of what peers do: once per key, and each topic at a rate of its own.

    Nobody outside can fill a log that way, nor use up what other topics may say.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def __call__(self, key: str, topic: str, text: str, *args: object) -> None:
        """Log a warning, unless this key has been warned of, or the topic has used up its rate."""
        self._log(logging.WARNING, key, topic, text, *args)

    def bug(self, error: BaseException, text: str) -> None:
        """Log an error that nobody foresaw, with its traceback, once for each place where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = f"{type(error).__name__} {place}"
        self._log(logging.ERROR, key, "bug", "%s\n%s", text, "".join(traceback.format_exception(error)).rstrip())

    def _log(self, level: int, key: str, topic: str, text: str, *args: object) -> None:
        unsaid = self._topics.setdefault(topic, _Topic()).admit(key, time.monotonic())
        if unsaid is None:
            return
        if unsaid:
            text, args = f"{text} (and %s more that were not logged)", (*args, unsaid)
        # The arguments go in as text, because a kept log record would keep an error's traceback alive.
        logger.log(level, text, *map(str, args))


class _Topic:
    """Counts the warnings of one topic."""

    def __init__(self) -> None:
        self._room = float(_BURST)
        self._counted = 0.0
        self._unsaid = 0
        # A dict and not a set, for its order: the oldest key is forgotten first.
        self._said: dict[str, None] = {}

    def admit(self, key: str, now: float) -> int | None:
        """Return how many warnings were left out before this one; None if this one is left out."""
        if key in self._said:
            return None
        self._room = min(_BURST, self._room + (now - self._counted) / _PAUSE_S)
        self._counted = now
        if self._room < 1:
            self._unsaid += 1
            return None
        self._room -= 1
        self._said[key] = None
        if len(self._said) > _KEYS:
            del self._said[next(iter(self._said))]
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
