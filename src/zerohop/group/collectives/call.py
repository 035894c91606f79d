"""Declares Call, one collective under way: its messages, which all carry its tag, and what ends them if it fails."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop._native import Reason, Status
from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError, ZerohopError, from_native
from zerohop.group.collectives.steps import Settled, Turn, until
from zerohop.group.collectives.tags import Failure, difference, failure_tag, parsed
from zerohop.group.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Memory, Operation, View
    from zerohop.group.collectives.scratch import Scratch
    from zerohop.group.collectives.tags import Tag

    # Posts a message: the memory, the rank, the tag or None, the seconds left.
    Post = Callable[[Memory | View, int, int | None, float | None], Operation[Any]]

# Seconds in which the other ranks must take the message that says that this one has failed.
_TELL_S: Final = 0.2
# Seconds in which a rank that has cancelled its messages must say why.
_HEAR_S: Final = 1.0
_GIVEN_UP: Final = from_native(Status.PEER_LOST.value, Reason.GIVEN_UP.value).reason
# More messages than a rank has posted at once to another one.
_MOST_POSTED: Final = 1000
_SAME: Final = "have all ranks call the same collectives, in the same order, with arguments that agree"


class Transfer(NamedTuple):
    """Describes a message that was posted."""

    operation: Operation[Any]
    rank: int
    # Bytes that must come; -1 if it is sent.
    nbytes: int


class Call:
    """Sends and receives the messages of one collective.

    Attributes:
        rank: this rank.
        size: the number of ranks.
        number: the place of the collective in the group, from 0.
        scratch: memory for its steps.
        in_flight: operations that have not been waited for.
        partners: the ranks that wait for this one, and are told if it fails.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        number: int,
        tag: Tag,
        deadline_ns: int,
        send: Post,
        receive: Post,
        short: View,
        scratch: Scratch,
    ) -> None:
        """Begin a collective; ``deadline_ns``: 0 is none; ``short``: memory for a short message."""
        self.rank = rank
        self.size = size
        self.number = number
        self.scratch = scratch
        self.in_flight: list[Operation[Any]] = []
        self.partners: set[int] = set()
        self._tag = tag
        self._bits = int(tag)
        self._deadline_ns = deadline_ns
        self._send = send
        self._receive = receive
        self._short = short
        self._nothing = short[:0]

    def send(self, view: Memory | View, rank: int) -> Transfer:
        """Post a message to a rank."""
        self.partners.add(rank)
        operation = self._send(view, rank, self._bits, self._left_s())
        self.in_flight.append(operation)
        return Transfer(operation, rank, -1)

    def receive(self, view: Memory | View, rank: int) -> Transfer:
        """Post a receive of the next message of a rank, which must fill the memory."""
        self.partners.add(rank)
        left_s = self._left_s()
        operation = self._receive(view, rank, None, None if left_s == math.inf else left_s)
        self.in_flight.append(operation)
        return Transfer(operation, rank, view.nbytes)

    def signal(self, rank: int) -> Transfer:
        """Send no bytes to a rank, which learns how far this one is, and whether the two calls differ."""
        return self.send(self._nothing, rank)

    def signal_of(self, rank: int) -> Transfer:
        """Post the receive for what ``signal`` of a rank sends."""
        # There is room for what a rank sends whose call differs: its tag then says in what.
        return self.receive(self._short, rank)._replace(nbytes=0)

    async def wait(self, *transfers: Transfer) -> None:
        """Wait for messages, in this order. List receives first: they tell if another rank has failed.

        Raises:
            PeerLost: a rank is lost; the text names it.
            DeadlineExceeded: the time is up; the text names the rank that has not sent or received.
            ProtocolError: a rank does something else.
        """
        for transfer in transfers:
            operation, rank, nbytes = transfer
            if not operation.done():
                await until(operation)
            try:
                message = operation.result(0)
            except ZerohopError as error:
                raise await self._explained(error, rank) from None
            self.in_flight.remove(operation)
            if nbytes >= 0:
                if message.tag != self._bits:
                    raise self._of_other_tag(rank, message.tag)
                if message.nbytes != nbytes:
                    text = f"rank {rank}: it has sent {message.nbytes} bytes in place of {nbytes}"
                    raise ProtocolError(text, fix=_SAME)

    async def give_turn(self) -> None:
        """Let other work of the control thread run."""
        await until(Turn())

    async def give_up(self, error: BaseException) -> None:
        """End all messages, and tell the ranks that wait for this one why."""
        self.cancel()
        failure, rank = _failure_of(error)
        gone = {self.rank, rank} if failure == Failure.LOST else {self.rank}
        tag = failure_tag(self.number, failure, self.rank if rank is None else rank)
        told = []
        for partner in self.partners - gone:
            try:
                told.append(self._send(self._nothing, partner, tag, _TELL_S))
            except ZerohopError:  # the Group is closed
                break
        for operation in told:
            if not operation.done():
                await until(operation)
            _outcome_of(operation)
        await until(Settled(self.in_flight))

    def cancel(self) -> None:
        """End all messages."""
        for operation in self.in_flight:
            if not operation.cancel():
                _outcome_of(operation)

    def _left_s(self) -> float:
        if not self._deadline_ns:
            return math.inf
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    async def _explained(self, error: ZerohopError, rank: int) -> ZerohopError:
        """Return the error of a message, which names the rank, or that with which the rank has given up."""
        error = replace(error, reason=_named(error, rank).reason)
        if isinstance(error, ProtocolError):
            return replace(error, reason=f"rank {rank}: the message is longer than this rank expects", fix=_SAME)
        if not isinstance(error, PeerLost) or not error.reason.endswith(_GIVEN_UP):
            return error
        # The rank is there, and says why. That comes after the messages that it had posted.
        self.cancel()
        posted = deque(self.in_flight)
        ends = time.monotonic() + _HEAR_S
        for _ in range(_MOST_POSTED):
            left_s = max(0.0, ends - time.monotonic())
            operation = posted.popleft() if posted else self._receive(self._short, rank, None, left_s)
            if not operation.done():
                await until(operation)
            outcome = _outcome_of(operation)
            if isinstance(outcome, Message) and outcome.source == rank and parsed(outcome.tag).failure is not None:
                return self._of_other_tag(rank, outcome.tag)
            if left_s == 0:
                break
        return error

    def _of_other_tag(self, rank: int, bits: int) -> ZerohopError:
        there = parsed(bits)
        failed = there.failure
        if failed is None:
            return ProtocolError(f"rank {rank}: {difference(self._tag, there)}", fix=_SAME)
        failure, named = failed
        earlier = "" if there.number == self._tag.number else "an earlier "
        if failure == Failure.LOST:
            error: ZerohopError = PeerLost(f"rank {named}: it is gone, says rank {rank}")
        elif failure == Failure.LATE:
            error = DeadlineExceeded(f"rank {named}: it has not come in time, says rank {rank}")
        elif failure == Failure.DIFFERS:
            error = ProtocolError(
                f"rank {named}: its call differs from that of rank {rank}, says rank {rank}", fix=_SAME
            )
        else:
            error = PeerLost(f"rank {rank}: it has given up the collective")
        return replace(error, reason=f"{error.reason}, of {earlier}collective") if earlier else error


def _outcome_of(operation: Operation[Any]) -> object:
    """Return the value or the error of an operation that has ended; its error then counts as seen."""
    from concurrent.futures import CancelledError

    try:
        return operation.result(0)
    except (CancelledError, ZerohopError) as error:
        return error


def _named(error: ZerohopError, rank: int) -> ZerohopError:
    """Return an error that names the rank at which a message has failed."""
    if error.reason.startswith("rank "):
        return error
    return replace(error, reason=f"rank {rank}: {error.reason}")


def _failure_of(error: BaseException) -> tuple[Failure, int | None]:
    """Return what other ranks are told of an error, and the rank that it names."""
    if isinstance(error, PeerLost):
        failure = Failure.LOST
    elif isinstance(error, DeadlineExceeded):
        failure = Failure.LATE
    elif isinstance(error, ProtocolError):
        failure = Failure.DIFFERS
    else:
        return Failure.OTHER, None
    words = error.reason.split(" ", 2)
    named = words[1].rstrip(":") if words[0] == "rank" and len(words) > 1 else ""
    return failure, int(named) if named.isdigit() else None
