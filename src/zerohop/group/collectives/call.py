"""Declares Call, one collective under way: its messages, which all carry its tag, and what ends them if it fails."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from zerohop._native import Reason, Status
from zerohop.errors import DeadlineExceeded, PeerLost, ProtocolError, ZerohopError, from_native
from zerohop.group.collectives.failed import SAME, StepsFailed, failed_by_tag
from zerohop.group.collectives.steps import Settled, Turn, until
from zerohop.group.collectives.tags import Failure, failure_tag, parsed
from zerohop.group.messages import GO_ON, Message, has_succeeded, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Memory, Operation, View
    from zerohop.group.collectives.attendance import Missing
    from zerohop.group.collectives.scratch import Scratch
    from zerohop.group.collectives.tags import Tag

    # Posts a message: the memory, the rank, the tag, the seconds left. Returns also what to say of the rank if that
    # time runs out; empty: the error says it.
    Send = Callable[[Memory | View, int, int, float], tuple[Operation[Any], str]]
    # Posts a receive: the memory, the rank, the seconds left or None.
    Receive = Callable[[Memory | View, int, float | None], Operation[Any]]
    # Sends and receives: the memory and the rank to send to; the memory, the rank and the length to receive; the tag,
    # the seconds left.
    Exchange = Callable[[Memory | View, int, Memory | View, int, int, int, float], "Begun"]
    # Finds out which ranks have not called a collective: its number and its kind.
    Ask = Callable[[int, str], Operation[Missing]]

# Says how far an exchange has come. True: both messages have ended well. False: nothing was done. Else it has the
# Operations to wait for, of the send and of the receive; None: the send has ended well, the receive was not posted.
Begun: TypeAlias = "bool | tuple[Operation[Any] | None, Operation[Any] | None]"

# Seconds in which the other ranks must take the message that says that this one has failed.
_TELL_S: Final = 0.2
# Seconds in which a rank that has cancelled its messages must say why.
_HEAR_S: Final = 1.0
_GIVEN_UP: Final = from_native(Status.PEER_LOST.value, Reason.GIVEN_UP.value).reason
# More messages than a rank has posted at once to another one.
_MOST_POSTED: Final = 1000
# The words for a rank if the time runs out.
_NOT_SENT: Final = "has not sent its part; it may wait for another rank"
NOT_RECEIVED: Final = "has not received its part; it may wait for another rank"
NO_ROOM: Final = "has messages of this rank that it has not received, so that there is no room for more"


class Transfer(NamedTuple):
    """Describes a message that was posted."""

    operation: Operation[Any]
    rank: int
    # Bytes that must come; -1 if it is sent.
    nbytes: int
    # The words for the rank if the time runs out; empty: the error has them.
    if_late: str


class Call:
    """Sends and receives the messages of one collective.

    Attributes:
        kind: the name of the collective.
        rank: this rank.
        size: the number of ranks.
        number: the place of the collective in the group, from 0.
        tag: says what this rank calls.
        scratch: memory for its steps.
        in_flight: operations that have not been waited for.
        partners: the ranks that wait for this one, and are told if it fails.
        abandoned: whether it has ended before its first step. The steps are then taken only to find the partners: they
            post nothing, touch no memory of the caller, and end at the first message that they wait for.
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        size: int,
        number: int,
        tag: Tag,
        deadline_ns: int,
        send: Send,
        receive: Receive,
        exchange: Exchange,
        ask: Ask,
        short: View,
        scratch: Scratch,
    ) -> None:
        """Begin a collective; ``deadline_ns``: 0 is none; ``short``: memory for a short message."""
        self.kind = kind
        self.rank = rank
        self.size = size
        self.number = number
        self.scratch = scratch
        self.in_flight: list[Operation[Any]] = []
        self.partners: set[int] = set()
        self.abandoned = False
        self.tag = tag
        self._bits = int(tag)
        self._deadline_ns = deadline_ns
        self._send = send
        self._receive = receive
        self._exchange = exchange
        self._ask = ask
        # Messages for which there was no room.
        self._held_up: list[Transfer] = []
        self._short = short
        self._nothing = short[:0]

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, which may be infinite."""
        if not self._deadline_ns:
            return math.inf
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def send(self, view: Memory | View, rank: int) -> Transfer:
        """Post a message to a rank."""
        self.partners.add(rank)
        if self.abandoned:
            return _NO_TRANSFER
        operation, if_late = self._send(view, rank, self._bits, self.left_s)
        self.in_flight.append(operation)
        transfer = Transfer(operation, rank, -1, if_late)
        if if_late == NO_ROOM:
            self._held_up.append(transfer)
        return transfer

    def receive(self, view: Memory | View, rank: int) -> Transfer:
        """Post a receive of the next message of a rank, which must fill the memory."""
        self.partners.add(rank)
        if self.abandoned:
            return _NO_TRANSFER
        left_s = self.left_s
        operation = self._receive(view, rank, None if left_s == math.inf else left_s)
        self.in_flight.append(operation)
        return Transfer(operation, rank, view.nbytes, _NOT_SENT)

    def signal(self, rank: int) -> Transfer:
        """Send no bytes to a rank, which learns how far this one is, and whether the two calls differ."""
        return self.send(self._nothing, rank)

    def signal_of(self, rank: int) -> Transfer:
        """Post the receive for what ``signal`` of a rank sends."""
        # There is room for what a rank sends whose call differs: its tag then says in what.
        return self.receive(self._short, rank)._replace(nbytes=0)

    async def exchange(self, view: Memory | View, to: int, into: Memory | View, sender: int) -> None:
        """Send a message to a rank, receive one from a rank, which must fill the memory, and wait for both.

        Raises:
            StepsFailed: as ``wait``.
        """
        await self._exchange_bytes(view, to, into, sender, into.nbytes)

    async def exchange_signals(self, to: int, sender: int, begun: Begun = False) -> None:
        """Send no bytes to a rank, and wait for what ``signal`` of a rank sends; ``begun``: what was done of that."""
        await self._exchange_bytes(self._nothing, to, self._short, sender, 0, begun)

    async def _exchange_bytes(
        self, view: Memory | View, to: int, into: Memory | View, sender: int, nbytes: int, begun: Begun = False
    ) -> None:
        self.partners.update((to, sender))
        if begun is False and not self.abandoned:
            begun = self._exchange(view, to, into, sender, nbytes, self._bits, self.left_s)
        if begun is True:
            return
        if begun is False:
            await self.wait(self.receive(into, sender)._replace(nbytes=nbytes), self.send(view, to))
            return
        sending, receiving = begun
        sent = () if sending is None else (Transfer(sending, to, -1, NOT_RECEIVED),)
        received = Transfer(receiving, sender, nbytes, _NOT_SENT) if receiving is not None else None
        self.in_flight.extend(each.operation for each in (received, *sent) if each is not None)
        await self.wait(received or self.receive(into, sender)._replace(nbytes=nbytes), *sent)

    async def wait(self, *transfers: Transfer) -> None:
        """Wait for messages, one after the other; pass those that are received first.

        A rank that has failed says so in a message. Who waits for a receive gets that message at once; who waits for a
        send to that rank may wait until the time is up.

        Raises:
            StepsFailed: the error is PeerLost: a rank is lost or has given up; DeadlineExceeded: the time is up;
                ProtocolError: a rank does something else. The text names the rank.
        """
        for transfer in transfers:
            if self.abandoned:
                raise StepsFailed(ZerohopError("it was cancelled"), Failure.OTHER, self.rank)
            operation, rank, nbytes, _ = transfer
            if not operation.done():
                await until(operation)
            try:
                message = operation.result(0)
            except ZerohopError as error:
                raise await self._ended(error, transfer) from None
            self.in_flight.remove(operation)
            if nbytes >= 0:
                if message.tag != self._bits:
                    raise failed_by_tag(self.tag, rank, message.tag)
                if message.nbytes != nbytes:
                    text = f"rank {rank}: it has sent {message.nbytes} bytes in place of {nbytes}"
                    raise StepsFailed(ProtocolError(text, fix=SAME, ranks=(rank,)), Failure.DIFFERS, rank)

    async def give_turn(self) -> None:
        """Let other work of the control thread run."""
        await until(Turn())

    async def give_up(self, failure: Failure, rank: int) -> Missing | None:
        """End all messages, and tell the ranks that wait for this one why, and at which rank it lies.

        Returns:
            the ranks that are missing, if time is what has run out.
        """
        self.cancel()
        asking = self.ask() if failure == Failure.LATE else None
        gone = {self.rank, rank} if failure == Failure.LOST else {self.rank}
        tag = failure_tag(self.number, failure, rank)
        told = []
        for partner in self.partners - gone:
            try:
                told.append(self._send(self._nothing, partner, tag, _TELL_S)[0])
            except ZerohopError:  # the Group is closed
                break
        for operation in told:
            if not operation.done():
                await until(operation)
            outcome_of(operation)
        await until(Settled(self.in_flight))
        if asking is None:
            return None
        if not asking.done():
            await until(asking)
        missing = outcome_of(asking)
        return None if isinstance(missing, BaseException) else cast("Missing", missing)

    def ask(self) -> Operation[Missing] | None:
        """Begin to find out which ranks have not called this collective; None if the Group is closed."""
        try:
            return self._ask(self.number, self.kind)
        except ZerohopError:
            return None

    def cancel(self) -> None:
        """End all messages."""
        for operation in self.in_flight:
            if not operation.cancel():
                outcome_of(operation)

    async def _ended(self, error: ZerohopError, transfer: Transfer) -> StepsFailed:
        """Return what ends the steps because a message has failed: its error, or why its rank has given up."""
        rank = transfer.rank
        if not error.ranks:
            error = replace(error, reason=f"rank {rank}: {error.reason}", ranks=(rank,))
        if isinstance(error, ProtocolError):
            text = f"rank {rank}: the message is longer than {'it' if transfer.nbytes < 0 else 'this rank'} expects"
            return StepsFailed(replace(error, reason=text, fix=SAME), Failure.DIFFERS, rank)
        if isinstance(error, DeadlineExceeded):
            # A rank that lacks a message of this one may wait for that.
            held_up = any(each.rank == rank and not has_succeeded(each.operation) for each in self._held_up)
            if_late = NO_ROOM if held_up else transfer.if_late
            if if_late:
                error = replace(error, reason=f"rank {rank} {if_late}")
            return StepsFailed(error, Failure.LATE, rank)
        if not isinstance(error, PeerLost):
            return StepsFailed(error, Failure.OTHER, self.rank)
        if not error.reason.endswith(_GIVEN_UP):
            return StepsFailed(replace(error, fix=GO_ON), Failure.LOST, rank)
        # The rank is there, and says why. That comes after the messages that it had posted.
        self.cancel()
        posted = deque(self.in_flight)
        ends = time.monotonic() + _HEAR_S
        for _ in range(_MOST_POSTED):
            left_s = max(0.0, ends - time.monotonic())
            operation = posted.popleft() if posted else self._receive(self._short, rank, left_s)
            if not operation.done():
                await until(operation)
            outcome = outcome_of(operation)
            if isinstance(outcome, Message) and outcome.source == rank and parsed(outcome.tag).failure is not None:
                return failed_by_tag(self.tag, rank, outcome.tag)
            if left_s == 0:
                break
        return StepsFailed(error, Failure.OTHER, rank)


# Stands for all messages of a collective that was abandoned. Nothing waits for it.
_NO_TRANSFER: Final = Transfer(cast("Any", None), -1, -1, "")
