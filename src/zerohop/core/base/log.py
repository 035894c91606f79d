"""Logs to Python's logger "zerohop", and to stderr if ``ZEROHOP_LOG`` names a level.

``warning``: problems that cost speed or need a repair; ``info``: also peers and lanes that come and go; ``debug``: also
the path of each pair of memories.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.core.base.importing import hold_off_forks
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable

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

    Nobody outside can fill a log that way, nor use up what other topics may say. Of the warnings for which a topic has
    no room the last one is logged when there is room again, with the number of the others.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object] = lambda *_: None) -> None:
        """Prepare; ``later(seconds, callback)`` calls back, on the thread that warns."""
        self._later = later
        self._topics: dict[str, _Topic] = {}

    def __call__(self, key: str, topic: str, text: str, *args: object) -> None:
        """Log a warning, unless this key has been warned of, now or once the topic has room for it."""
        self._add(logging.WARNING, key, topic, text, *args)

    def bug(self, error: BaseException, text: str) -> None:
        """Log an error that nobody foresaw, with its traceback, once for each place where it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = f"{type(error).__name__} {place}"
        self._add(logging.ERROR, key, "bug", "%s\n%s", text, "".join(traceback.format_exception(error)).rstrip())

    def finish(self) -> None:
        """Log what waits for room, because nothing comes after it."""
        for topic in self._topics.values():
            topic.log()

    def _add(self, level: int, key: str, topic: str, text: str, *args: object) -> None:
        of = self._topics.setdefault(topic, _Topic())
        # The arguments go in as text, because a kept log record would keep an error's traceback alive.
        if of.add(key, _Warning(level, text, tuple(map(str, args)))):
            self._log(of)

    def _log(self, topic: _Topic) -> None:
        """Log the last warning of a topic now if there is room, else later."""
        seconds = topic.until_room(time.monotonic())
        if seconds == 0:
            topic.log()
        elif not topic.timed:
            topic.timed = True
            self._later(seconds, lambda: self._timed_out(topic))

    def _timed_out(self, topic: _Topic) -> None:
        topic.timed = False
        self._log(topic)


class _Warning(NamedTuple):
    """Holds the parts of a line of the log."""

    level: int
    text: str
    args: tuple[str, ...]


class _Topic:
    """Counts the warnings of one topic, and keeps the last one until there is room for it.

    Attributes:
        timed: whether somebody looks for room later.
    """

    def __init__(self) -> None:
        self.timed = False
        self._room = float(_BURST)
        self._counted = 0.0
        # The last warning that was not logged yet, and how many others came before it.
        self._last: _Warning | None = None
        self._others = 0
        # The keys of these, and those that were logged. Dicts keep their order: the oldest key is forgotten first.
        self._unsaid: dict[str, None] = {}
        self._said: dict[str, None] = {}

    def add(self, key: str, warning: _Warning) -> bool:
        """Take a warning; return False if its key has been warned of, or is about to be."""
        if key in self._said or key in self._unsaid:
            return False
        self._others += self._last is not None
        self._last = warning
        self._remember(key, self._unsaid)
        return True

    @staticmethod
    def _remember(key: str, keys: dict[str, None]) -> None:
        keys[key] = None
        if len(keys) > _KEYS:
            del keys[next(iter(keys))]

    def until_room(self, now: float) -> float:
        """Return the seconds until another warning may be logged."""
        self._room = min(_BURST, self._room + (now - self._counted) / _PAUSE_S)
        self._counted = now
        return max(0.0, 1 - self._room) * _PAUSE_S

    def log(self) -> None:
        """Log the last warning, if it was not logged yet."""
        if self._last is None:
            return
        level, text, args = self._last
        others, key = self._others, next(reversed(self._unsaid))
        self._last, self._others, self._unsaid = None, 0, {}
        self._room -= 1
        self._remember(key, self._said)
        if others:
            text, args = f"{text} (and %s more that were not logged)", (*args, str(others))
        logger.log(level, text, *args)
