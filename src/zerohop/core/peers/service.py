"""Declares the services that a face adds to its Context, and that rpc.py calls.

This is a file of its own because `import zerohop` needs it, and needs no asyncio, which rpc.py imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeAlias

    from zerohop.core.peers.peer_link import PeerLink

    # Answers a peer's call, on the control thread: at once, or with a coroutine.
    Service: TypeAlias = Callable[[PeerLink, bytes], bytes | Coroutine[Any, Any, bytes]]


class Refusal(Exception):
    """Raised by a service that refuses a call; the caller gets the error of this status."""

    def __init__(self, status: Status, text: str, reason: Reason = Reason.NONE) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text
