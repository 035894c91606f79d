"""Declares the services that a face adds to its Context, which rpc.py calls. Calls those of a peer.

This is a file of its own because `import zerohop` needs it, and needs no asyncio, which rpc.py imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Reason, Status
from zerohop.core.peers.peer_link import NOTHING_AFTER
from zerohop.errors import PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from zerohop.core.peers.peer_link import After, PeerLink

    # Answers a peer's call, on the control thread: at once, or with a coroutine.
    Service: TypeAlias = Callable[[PeerLink, bytes], bytes | Coroutine[Any, Any, bytes]]


class Refusal(Exception):
    """Raised by a service that refuses a call; the caller gets the error of this status."""

    def __init__(self, status: Status, text: str, reason: Reason = Reason.NONE) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text


async def call(link: PeerLink, service: str, body: bytes, after: After = NOTHING_AFTER) -> bytes:
    """Call a service of the peer, and return its answer. On the control thread.

    Raises:
        ZerohopError: the service refused; Unsupported if the peer has no such service.
        PeerLost: the peer is gone.
        DeadlineExceeded: the peer does not answer before the operation's deadline.
    """
    if link.session is None:
        raise PeerLost("the peer is gone", peer=link.peer)
    return await link.session.call(service, body, after)


def send(link: PeerLink, service: str, body: bytes) -> None:
    """Call a service of the peer without waiting for the answer. On the control thread."""
    if link.session is not None:
        link.session.send(service, body)


def give_up(link: PeerLink, error: PeerLost) -> None:
    """End a connection for the reason and with the fix of an error, which the peer is told. On the control thread."""
    link.step_failed(error)
