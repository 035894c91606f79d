"""Has the errors of Operations name a rank."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from zerohop.core.face import name_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Operation
    from zerohop.errors import ZerohopError

T = TypeVar("T")


def of_rank(operation: Operation[T], rank: int | Callable[[], int | None]) -> Operation[T]:
    """Have the errors of an Operation name a rank; ``rank()`` finds out which it is if there is an error."""
    return name_errors(operation, functools.partial(name_rank, rank))


def name_rank(rank: int | Callable[[], int | None], error: ZerohopError) -> None:
    """Name a rank in an error, unless the error names one."""
    found = rank() if callable(rank) else rank
    if found is not None and not error.ranks:
        error.reason = f"rank {found}: {error.reason}"
        error.ranks = (found,)
