"""Declares Ended, what ends the steps of a collective, and how messages have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.errors import ZerohopError

if TYPE_CHECKING:
    from zerohop.core.face import Operation
    from zerohop.group.collectives.tags import Failure


class Ended(Exception):
    """Ends the steps of a collective.

    Attributes:
        error: what the caller gets.
        failure: why, as other ranks are told.
        rank: the rank at which it lies, as other ranks are told.
    """

    def __init__(self, error: ZerohopError, failure: Failure, rank: int) -> None:
        super().__init__(error, failure, rank)
        self.error = error
        self.failure = failure
        self.rank = rank


def outcome_of(operation: Operation[Any]) -> object:
    """Return the value or the error of an operation that has ended; its error then counts as seen."""
    from concurrent.futures import CancelledError

    try:
        return operation.result(0)
    except (CancelledError, ZerohopError) as error:
        return error


def has_succeeded(operation: Operation[Any]) -> bool:
    """Tell whether an operation has ended well."""
    return operation.done() and not isinstance(outcome_of(operation), BaseException)
