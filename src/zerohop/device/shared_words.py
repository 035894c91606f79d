"""Declares SharedWords: the memory by which kernels of a Queue and this process tell each other how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Proxy
from zerohop.device.descriptor import Control

if TYPE_CHECKING:
    from zerohop.core.face import Context


class SharedWords:
    """Holds the counters, the states, the FIFO and the results of atomics, in memory of the host.

    Attributes:
        memory: the memory.
        control: the addresses of its parts.
    """

    def __init__(self, ctx: Context, peers: int, slots: int) -> None:
        """Allocate the memory for so many peers, and entries of the FIFO."""
        taken, state, self._peers_at, self._peer_bytes, results, fifo, nbytes = Proxy.control_layout(peers, slots)
        self.memory = ctx.alloc(nbytes)
        self._words = self.memory.numpy().view("u8")
        at = self.memory.address
        self.control = Control(at + taken, at + state, at + self._peers_at, self._peer_bytes, at + results, at + fifo)

    @property
    def taken(self) -> int:
        """Return the number of entries that this process has taken out of the FIFO."""
        return int(self._words[0])

    @property
    def state(self) -> int:
        """Return the state of the whole Queue, a status."""
        return int(self._words[1])

    def state_of(self, peer: int) -> int:
        """Return the state of a peer, a status."""
        return int(self._words[(self._peers_at + peer * self._peer_bytes) // 8 + 1])
