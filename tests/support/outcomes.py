"""How a call ended, as a plain value that crosses a process boundary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zerohop as zh
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Outcome:
    """`kind` is "ok" or the name of the exception's class."""

    kind: str
    text: str = ""
    reason: str = ""
    fix: str = ""
    provider: str = ""
    peer: str = ""

    def says(self, *words: str) -> bool:
        """Whether text, reason and fix together contain each of the words."""
        everything = f"{self.text} {self.reason} {self.fix}".lower().replace("_", " ")
        return all(word in everything for word in words)


def outcome_of(error: BaseException | None) -> Outcome:
    """The Outcome that stands for the exception, or for none."""
    if error is None:
        return Outcome("ok")
    if not isinstance(error, zh.ZerohopError):
        return Outcome(type(error).__name__, str(error))
    return Outcome(
        type(error).__name__,
        str(error),
        str(error.reason or ""),
        str(error.fix or ""),
        str(error.provider or ""),
        str(error.peer or ""),
    )


def attempt(action: Callable[[], object]) -> Outcome:
    """Run it; a ZerohopError, an OSError or a ValueError becomes an Outcome, anything else is raised."""
    try:
        action()
    except (zh.ZerohopError, OSError, ValueError) as error:
        return outcome_of(error)
    return Outcome("ok")


def when_taken(post: Callable[[], zh.Operation[int]]) -> zh.Operation[int]:
    """What a _nowait call gives once it is taken; AssertionError when it never is."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        try:
            return post()
        except zh.WouldBlock:
            time.sleep(0.001)  # what it needs is being made elsewhere, and there is no Operation to wait for
    raise AssertionError("put off for ever")
