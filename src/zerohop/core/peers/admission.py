"""Decides which peers that dial may come in, and knows with which ones a Connection is being set up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zerohop.core.control import handshake
from zerohop.core.control.handshake import CLOSED, DUPLICATE, Refused

if TYPE_CHECKING:
    from collections.abc import Collection

    from zerohop.core.control.address import Address
    from zerohop.core.control.wire import Hello
    from zerohop.core.peers.peer_core import PeerCore


class Admission:
    """Admits peers to one Context. On the control thread.

    Attributes:
        closing: whether nobody is let in any more.
    """

    def __init__(self, core: PeerCore, dials: Collection[Address]) -> None:
        """Prepare; ``dials`` has the addresses that this side dials."""
        self._core = core
        self._dials = dials
        # Ids of peers that were let in, and when (monotonic seconds), until they begin to speak.
        self._admitted: dict[str, float] = {}
        self.closing = False

    def admit(self, hello: Hello) -> None:
        """Check a peer that has dialled; raise Refused if it may not come in."""
        if self.closing:
            raise Refused(CLOSED, "this Context is closing")
        own, other = self._core.id, hello.context
        if other == own:
            if all(where.context != own for where in self._dials):
                raise Refused(DUPLICATE, "this is the Context that says so")
            return
        if other in self._core.connected:
            raise Refused(DUPLICATE, "already connected")
        if self.arriving(other):
            raise Refused(DUPLICATE, "connecting to that peer already")
        self._admitted[other] = time.monotonic()

    def entered(self, peer: str) -> None:
        """Note that a peer that was admitted begins to speak."""
        self._admitted.pop(peer, None)

    def arriving(self, peer: str, *, dialled: bool = True) -> bool:
        """Tell whether a Connection to a peer is being set up; ``dialled``: also by a dial of this side."""
        admitted = self._admitted.get(peer)
        if admitted is not None and time.monotonic() - admitted > handshake.TIMEOUT_S:
            del self._admitted[peer]
            admitted = None
        return admitted is not None or any(
            link.peer == peer and (dialled or link.session is None or not link.session.initiator)
            for link in self._core.young
        )
