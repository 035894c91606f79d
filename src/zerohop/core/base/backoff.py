"""What did not work, kept so that not every operation runs into it again: for a while, or for good."""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from zerohop._native import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")

# What failed for a reason that may pass is left alone for so long, where there is another way; each time in a row that
# it fails again, for twice as long as before.
HOLD_OFF_S: Final = 3.0
_LONGEST_S: Final = 96.0


class _Setback(NamedTuple):
    until: float
    held_s: float
    why: str


class Setbacks(Generic[K]):
    """Why each of some things did not work when it was last tried. Any thread may ask."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: dict[K, _Setback] = {}

    def note(self, key: K, why: str, *, for_good: bool = False) -> None:
        """It did not work, and is not to be tried again soon, or ever."""
        now, held_s = monotonic(), HOLD_OFF_S
        before = self._all.get(key)
        if for_good:
            held_s = math.inf
        elif before is not None and now < before.until + before.held_s:
            held_s = min(2 * before.held_s, _LONGEST_S)
        self._all[key] = _Setback(now + held_s, held_s, why)

    def why_not(self, key: K) -> str:
        """Why it is not to be tried now; empty when it may be."""
        setback = self._all.get(key)
        return setback.why if setback is not None and setback.until > monotonic() else ""

    def now(self) -> dict[K, str]:
        """All that are not to be tried now, and why."""
        now = monotonic()
        return {key: setback.why for key, setback in self._all.copy().items() if setback.until > now}

    def wait_s(self, key: K) -> float:
        """How long it is not to be tried; infinite where that is for good, or nothing speaks against it."""
        setback = self._all.get(key)
        left = setback.until - monotonic() if setback is not None else 0.0
        return left if left > 0 else math.inf

    def forget(self, key: K) -> None:
        """It works."""
        self._all.pop(key, None)

    def forget_passing(self) -> None:
        """Something has changed: all may be tried again that did not fail for good."""
        self._all = {key: setback for key, setback in self._all.copy().items() if setback.until == math.inf}


def lasts(status: int, reason: int) -> bool:
    """Whether a native failure will be the same whenever it is tried again: the thing itself is not supported."""
    return status == Status.UNSUPPORTED.value and reason in (Reason.NONE.value, Reason.NO_PEER_LINK.value)
