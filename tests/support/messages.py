"""What a test and its peer process say to each other over their pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.outcomes import Outcome


@dataclass(frozen=True)
class Command:
    """Call the Service method of that name."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Result:
    value: Any


@dataclass(frozen=True)
class Failure:
    """The call raised; the traceback is text, because the exception's class may not be picklable."""

    outcome: Outcome
    trace: str
