"""Declares StepsFailed, which ends the steps of a collective, and says why another rank's message ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError
from zerohop.group.collectives.tags import Failure, difference, parsed
from zerohop.group.messages import GO_ON

if TYPE_CHECKING:
    from zerohop.errors import ZerohopError
    from zerohop.group.collectives.tags import Tag

SAME: Final = "have all ranks call the same collectives, in the same order, with arguments that agree"


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


def failed_by_tag(here: Tag, rank: int, bits: int) -> StepsFailed:
    """Return what ends the steps if a rank has another tag than this one. A failure is passed on as it came."""
    there = parsed(bits)
    failed = there.failure
    if failed is None:
        text = f"rank {rank}: {difference(here, there)}"
        return StepsFailed(ProtocolError(text, fix=SAME, ranks=(rank,)), Failure.DIFFERS, rank)
    failure, named = failed
    says = "" if named == rank else f", says rank {rank}"
    if there.number != here.number:
        says += ", of an earlier collective"
    error: ZerohopError
    if failure == Failure.LOST:
        error = PeerLost(f"rank {named}: it is gone{says}", fix=GO_ON)
    elif failure == Failure.LATE:
        # This rank itself may have called so late, and the one that is named may have come meanwhile.
        late = f"rank {rank}: its time was up: rank {named} had not come"
        error = DeadlineExceeded(late, fix="call it sooner, or with a longer timeout= in all ranks")
    elif failure == Failure.DIFFERS:
        error = ProtocolError(f"rank {named}: its call differs from that of another rank{says}", fix=SAME)
    else:
        error = PeerLost(f"rank {named}: it has given up the collective{says}", fix=GO_ON)
    error.ranks = (named,)
    return StepsFailed(error, failure, named)
