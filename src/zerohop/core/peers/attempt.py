"""Holds an attempt to reach a peer, and says for what it waits when time runs out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.control import handshake
from zerohop.core.control.dial import explained
from zerohop.errors import ZerohopError, copy_of, silent_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.control.address import Address
    from zerohop.core.peers.peer_link import PeerLink

# Seconds after which a dial ends, whatever deadlines the waiting operations have: the peer may be long gone.
LONGEST_DIAL_S: Final = 120.0


class Dial:
    """Holds an attempt to reach a peer, which all waiting operations share; the latest deadline is its time limit."""

    def __init__(self, work: Callable[[Address, Dial], Coroutine[Any, Any, PeerLink]], where: Address) -> None:
        self._where = where
        self._waits_for = ""
        self._met = False
        self._served: PeerLink | None = None
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        # The dial gets this time even if its operation has less; the operation's next attempt then joins the dial.
        self._until = self._started + handshake.TIMEOUT_S
        self._expired = False
        self.task = self._loop.create_task(self._run(work, where))
        self._timer = self._loop.call_at(self._until, self._expire)
        self.task.add_done_callback(lambda _: self._timer.cancel())

    def allow(self, seconds: float | None) -> None:
        """Let the attempt last ``seconds`` from now on; None: ``LONGEST_DIAL_S`` in all."""
        until = self._started + LONGEST_DIAL_S
        if seconds is not None:
            until = min(until, self._loop.time() + seconds)
        self._until = max(self._until, until)

    def _expire(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._expire)
        else:
            self._expired = True
            self.task.cancel()

    def waits(self, text: str) -> None:
        """Note why this lasts; empty: because the peer does not answer."""
        self._waits_for = text

    def met(self) -> None:
        """Note that the very Context that was sought has answered, so that the address is right."""
        self._met = True

    def serve(self, link: PeerLink) -> None:
        """End the attempt with a link that was made in another way."""
        self._served = link
        self.task.cancel()

    def result(self) -> PeerLink:
        """Return the link that the attempt has ended with, or raise why there is none."""
        # The task of an attempt that was served may have been cancelled before its first step.
        return self._served or self.task.result()

    def silent(self) -> ZerohopError:
        """Return the error for an operation that has no time left for this."""
        text = self._waits_for or "the peer does not finish connecting"
        return self._explained(silent_error(self._where.context, text))

    def _explained(self, error: ZerohopError) -> ZerohopError:
        return copy_of(error) if self._met else explained(error, self._where)

    async def _run(self, work: Callable[[Address, Dial], Coroutine[Any, Any, PeerLink]], where: Address) -> PeerLink:
        try:
            return await work(where, self)
        except asyncio.CancelledError:
            if not self._expired:
                raise
            raise self.silent() from None
        except ZerohopError as error:
            raise self._explained(error) from None
