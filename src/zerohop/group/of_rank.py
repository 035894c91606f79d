"""Has the errors of Operations name a rank, and what was called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from zerohop.core.face import name_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Operation
    from zerohop.errors import ZerohopError

T = TypeVar("T")


def of_rank(operation: Operation[T], rank: int | Callable[[], int | None] | None, kind: str) -> Operation[T]:
    """Have the errors of an Operation name a rank, and the name of the method that was called.

    Args:
        operation: the Operation.
        rank: the rank, or what finds out which it is if there is an error; None: it is not known.
        kind: the name of the method. The core knows an active message as a send, and a first message as a connect.
    """
    return name_errors(operation, functools.partial(_name, rank, kind))


def _name(rank: int | Callable[[], int | None] | None, kind: str, error: ZerohopError) -> None:
    error.operation = kind
    name_rank(rank() if callable(rank) else rank, error)


def name_rank(rank: int | None, error: ZerohopError) -> None:
    """Name a rank in an error, unless the error names one."""
    if rank is not None and not error.ranks:
        error.reason = f"rank {rank}: {error.reason}"
        error.ranks = (rank,)
