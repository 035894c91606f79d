"""Declares Notices, by which ranks learn that one has left their group, though its process and Context go on.

A rank that waits for another one greets it, so that the other knows whom to tell. A rank that leaves tells those that
it knows, by a message that comes behind all earlier ones.
"""

from __future__ import annotations

import enum
import functools
import time
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.face import send_to_mailbox
from zerohop.errors import PeerLost, ZerohopError
from zerohop.group.messages import GroupReceive, end_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Operation
    from zerohop.group.channel import Channel
    from zerohop.group.members import Members

# Seconds in which a greeting must find room, and a rank that has greeted must be reached.
_GREETING_S: Final = 30.0
_NOTHING: Final = b""
# The tag of a notice has its kind in these bits, and a number above them.
_KIND_BITS: Final = 4


class Notice(enum.IntEnum):
    """Tells the messages apart, by their tags."""

    GREETING = 1
    LEAVING = 2
    # Of a collective: whether it was called, and the answers. The number is that of the collective.
    ASKING = 3
    CALLED = 4
    NOT_CALLED = 5


class Notices:
    """Sends and receives the notices of one group. Ranks are numbers of the group.

    Attributes:
        handlers: functions for other kinds of notices, which are called on the control thread with rank and number.
        begin: does work that nobody waits for, until the group is closed.
    """

    def __init__(
        self,
        channel: Channel,
        members: Members,
        greeted: set[int],
        left: Callable[[int], None],
        begin: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        """Use a channel that is open.

        Args:
            channel: of the notices.
            members: the ranks.
            greeted: has the ranks that were greeted, and this one.
            left: called on the control thread when a rank has left the group.
            begin: does work on the control thread that ends with the group.
        """
        self._channel = channel
        self._members = members
        self._left = left
        self.handlers: dict[int, Callable[[int, int], None]] = {}
        self.begin = begin
        self._greeted = greeted

    def wants_greeting(self, number: int) -> bool:
        """Tell whether to call ``greet``, because a receive waits for a rank that was not greeted. Any thread."""
        return number not in self._greeted

    async def greet(self, number: int) -> None:
        """Connect to a rank, and let it know this one. It is lost if it cannot be reached."""
        self._greeted.add(number)
        there = self._channel.team.ranks[number]
        await self._members.watch(there)
        operation = self._post(number, Notice.GREETING, nowait=False)
        if operation is None:
            self._greeted.discard(number)
            return
        try:
            await operation
        except ZerohopError:  # who waits for the rank is told of its loss
            self._greeted.discard(number)
        finally:
            end_quietly(operation)

    async def listen(self) -> None:
        """Receive notices until the group is closed."""
        while True:
            receive = GroupReceive(None, self._channel.losses)
            receiving = self._channel.mailbox.receive(receive, bytearray(), None, None, 0)
            try:
                message = await receiving
            except PeerLost:  # of some rank, of which those who wait for it are told
                continue
            except ZerohopError:
                return
            finally:
                end_quietly(receiving)
            self._take(message.source, message.tag)

    def _take(self, number: int, tag: int) -> None:
        if number >= len(self._channel.team.ranks):
            return  # a rank of this library sends no such thing
        kind = tag & ((1 << _KIND_BITS) - 1)
        handler = self.handlers.get(kind)
        if handler is not None:
            handler(number, tag >> _KIND_BITS)
        elif kind == Notice.LEAVING:
            self._left(number)
        elif kind == Notice.GREETING:
            # Not awaited: a rank that is stopped, and cannot be reached, must not hold up the notices of others.
            self.begin(functools.partial(self._members.watch, self._channel.team.ranks[number]))

    def reached(self) -> set[int]:
        """Return the ranks of the group that were reached. Any thread."""
        numbers = map(self._channel.team.number_of, self._members.reached())
        return {number for number in numbers if number is not None}

    def has_arrived(self, number: int) -> bool:
        """Tell whether a rank was found in the store. On the control thread."""
        return self._members.has_found(self._channel.team.ranks[number])

    async def send(self, number: int, notice: Notice, about: int, seconds: float) -> None:
        """Send a notice with a number to a rank, which is reached first. On the control thread.

        Raises:
            ZerohopError: it cannot be reached in that time, or is gone.
        """
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        await self._members.reach(self._channel.team.ranks[number], until_ns)
        operation = self._post(number, notice | about << _KIND_BITS, nowait=False, seconds=seconds)
        if operation is not None:
            try:
                await operation
            finally:
                end_quietly(operation)

    def leave(self) -> None:
        """Tell all ranks that this one knows. Any thread; waits for nothing."""
        for number in self.reached() - {self._channel.team.rank}:
            operation = self._post(number, Notice.LEAVING, nowait=True)
            if operation is not None:
                end_quietly(operation)  # there was no room, or the rank is gone

    def _post(self, number: int, tag: int, *, nowait: bool, seconds: float = _GREETING_S) -> Operation[Any] | None:
        connection = self._members.known(self._channel.team.ranks[number])
        if connection is None:
            return None
        try:
            envelope = self._channel.envelope(number, tag)
            return send_to_mailbox(connection, _NOTHING, envelope, seconds, nowait=nowait)
        except ZerohopError:
            return None
