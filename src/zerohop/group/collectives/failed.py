"""Declares StepsFailed, which ends the steps of a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerohop.errors import ZerohopError
    from zerohop.group.collectives.tags import Failure


class StepsFailed(Exception):
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
