"""Delivers notifications to the target of ``write(..., notify=N)`` and of ``notify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from zerohop.core.transfers.queue_wait import QueueWait
from zerohop.errors import Closed, WouldBlock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zerohop.core.lifecycle import Core
    from zerohop.core.transfers.connection import Connection


class Notification(NamedTuple):
    """Announces data of a peer, never before the data is visible here.

    Attributes:
        value: the 32-bit number that the peer chose.
        nbytes: bytes of the write or read that it came with; 0 if it came alone.
        peer: the Connection over which it came.
        message: up to 256 bytes that the peer sent with it; empty if there are none.
    """

    value: int
    nbytes: int
    peer: Connection
    message: bytes = b""


class NotificationWait(QueueWait[Notification]):
    """Waits for the next notification that nobody else takes."""

    __slots__ = ()

    _made: ClassVar = Notification
    _kind = "notification"
    _silence = "no notification came"


def take_now(core: Core) -> Notification:
    """Return a notification that has arrived; raise WouldBlock if there is none."""
    wait = NotificationWait(core, 0)
    if not wait._poll():
        raise WouldBlock("no notification has arrived", operation="notification", fix="wait with notification()")
    return wait.result()


async def iterate(core: Core) -> AsyncIterator[Notification]:
    """Yield one notification after the other, until the Context is closed."""
    while not core.closed:
        try:
            note = await NotificationWait(core, 0)
        except Closed:
            return
        yield note
