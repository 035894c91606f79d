"""Declares the Operation of a receive of a Group, and its value."""

# ruff: noqa: D102 - Operation documents result()

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zerohop._native import Reason
from zerohop.core.face import InFlight
from zerohop.errors import PeerLost, ZerohopError

if TYPE_CHECKING:
    from zerohop._native import Op

_TAG_BITS = 32
MOST_TAG = (1 << _TAG_BITS) - 1


class Message(NamedTuple):
    """Describes a message that has been received.

    Attributes:
        source: the rank that has sent it.
        tag: its tag.
        nbytes: its length.
    """

    source: int
    tag: int
    nbytes: int


class GroupReceive(InFlight[Message]):
    """Represents a receive of a Group.

    Its errors name the rank that was waited for, and PeerLost the one that is gone.
    """

    __slots__ = ("_losses", "_source")

    def __init__(self, source: int | None, losses: dict[int, ZerohopError]) -> None:
        """Wait for a rank; None: any. ``losses``: why each lost rank is gone."""
        self._source = source
        self._losses = losses

    def result(self, timeout: float | None = None) -> Message:
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def _value_of(self, native: Op) -> Message:
        self.nbytes = native.bytes_done
        return Message(native.value >> _TAG_BITS, native.value & MOST_TAG, native.bytes_done)

    def _error_of(self, native: Op) -> BaseException:
        error = super()._error_of(native)
        rank = self._source
        if isinstance(error, PeerLost) and native.reason != Reason.GIVEN_UP:
            rank = native.value >> _TAG_BITS
            why = self._losses.get(rank)
            if why is not None:
                error = replace(error, reason=why.reason, fix="go on without it, or start the program again")
        if rank is None or not isinstance(error, ZerohopError) or error.reason.startswith(f"rank {rank}"):
            return error
        return replace(error, reason=f"rank {rank}: {error.reason}")
