"""Declares Notices, by which ranks learn that one has left their group, though its process and Context go on.

A rank that waits for another one greets it, so that the other knows whom to tell. A rank that leaves tells those that
it knows, by a message that comes behind all earlier ones.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.face import send_to_mailbox
from zerohop.errors import PeerLost, ZerohopError
from zerohop.group.messages import GroupReceive, end_quietly

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Operation
    from zerohop.group.channel import Channel
    from zerohop.group.members import Members

# Seconds in which a greeting must find room, and a rank that has greeted must be reached.
_GREETING_S: Final = 30.0
_NOTHING: Final = b""


class Notice(enum.IntEnum):
    """Tells the messages apart, by their tags."""

    GREETING = 1
    LEAVING = 2


class Notices:
    """Sends and receives the notices of one group. Ranks are numbers of the group."""

    def __init__(self, channel: Channel, members: Members, left: Callable[[int], None]) -> None:
        """Use a channel that is open. ``left`` is called on the control thread when a rank has left the group."""
        self._channel = channel
        self._members = members
        self._left = left
        self._greeted: set[int] = {channel.team.rank}

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
            if message.tag == Notice.LEAVING:
                self._left(message.source)
            elif message.source < len(self._channel.team.ranks):
                await self._members.watch(self._channel.team.ranks[message.source])

    def leave(self) -> None:
        """Tell all ranks that this one knows. Any thread; waits for nothing."""
        for there in self._members.reached():
            number = self._channel.team.number_of(there)
            if number is not None and number != self._channel.team.rank:
                operation = self._post(number, Notice.LEAVING, nowait=True)
                if operation is not None:
                    end_quietly(operation)  # there was no room, or the rank is gone

    def _post(self, number: int, notice: Notice, *, nowait: bool) -> Operation[Any] | None:
        connection = self._members.known(self._channel.team.ranks[number])
        if connection is None:
            return None
        try:
            envelope = self._channel.envelope(number, notice)
            return send_to_mailbox(connection, _NOTHING, envelope, _GREETING_S, nowait=nowait)
        except ZerohopError:
            return None
