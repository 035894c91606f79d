"""Remembers what failed, so that not every operation tries it again."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from zerohop._native import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")

# Seconds for which a thing that failed is not tried again. Each failure in a row doubles them, up to the longest.
HOLD_OFF_S: Final = 3.0
_LONGEST_S: Final = 96.0


class _Failure(NamedTuple):
    until: float
    held_s: float
    why: str


class Backoff(Generic[K]):
    """Remembers failures by key, each for a while or for good. Any thread may ask."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: dict[K, _Failure] = {}

    def __bool__(self) -> bool:
        return bool(self._failures)

    def record_failure(self, key: K, why: str, status: int = 0, reason: int = 0) -> None:
        """Remember that this failed, with a native status and reason or without; see ``is_permanent``."""
        now, held_s = monotonic(), HOLD_OFF_S
        before = self._failures.get(key)
        if is_permanent(status, reason):
            held_s = math.inf
        elif before is not None and now < before.until + before.held_s:
            held_s = min(2 * before.held_s, _LONGEST_S)
        self._failures[key] = _Failure(now + held_s, held_s, why)

    def why_not(self, key: K) -> str:
        """Return why this is not to be tried now; empty when it may be."""
        failure = self._failures.get(key)
        return failure.why if failure is not None and failure.until > monotonic() else ""

    def failing(self) -> dict[K, str]:
        """Return each key that is not to be tried now, with the reason."""
        now = monotonic()
        return {key: failure.why for key, failure in self._failures.copy().items() if failure.until > now}

    def seconds_left(self, key: K) -> float:
        """Return the seconds until this may be tried again; infinite if it never may, or may be tried now."""
        failure = self._failures.get(key)
        left = failure.until - monotonic() if failure is not None else 0.0
        return left if left > 0 else math.inf

    def record_success(self, key: K) -> None:
        """Forget that this failed."""
        self._failures.pop(key, None)

    def retry_all(self) -> None:
        """Let everything be tried again that did not fail for good, because something has changed."""
        self._failures = {key: failure for key, failure in self._failures.copy().items() if failure.until == math.inf}


def is_permanent(status: int, reason: int) -> bool:
    """Tell whether a native failure comes again at every attempt, because the thing itself is not supported."""
    return status == Status.UNSUPPORTED.value and reason in (Reason.NONE.value, Reason.NO_PEER_LINK.value)
