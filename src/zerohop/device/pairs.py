"""Declares Pair: how kernels reach one peer through a queue pair of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from zerohop.core.face import open_pair_for
from zerohop.errors import Unsupported, ZerohopError
from zerohop.fabric.peer_queue import INLINE_BYTES, MESSAGES, PeerQueue

if TYPE_CHECKING:
    from zerohop.core.face import Context, QueuePair, RemoteBuffer, Route

_NOT_NICS: Final = "NICs do not move the bytes between its memory and all of this Queue's by themselves"
_WORD: Final = 8
_HEAD_WORDS: Final = 8  # Pair of zerohop/device/pair.hpp, and the word of its lock, in a line of their own


class Opened(NamedTuple):
    """Holds a queue pair to a peer, and what requests name memory by.

    Attributes:
        pair: the queue pair.
        base: address of the peer's memory that its keys are for.
        remote_key: the key of that memory.
        local_keys: the keys of each local.
        scratch_key: the key of the scratch memory.
    """

    pair: QueuePair
    base: int
    remote_key: int
    local_keys: list[int]
    scratch_key: int


async def open_pair(remote: RemoteBuffer, routes: list[Route]) -> Opened | str:
    """Return a queue pair to the owner of a handle; or, if there cannot be one, why. On the control thread.

    ``routes``: from each local, and from the scratch memory behind them.
    """
    if "r" not in remote.rights or remote.nbytes == 0:
        return "a NIC tells by a read of the peer's memory that bytes have arrived, and the handle allows none"
    if len({route.lane for route in routes}) != 1:
        return _NOT_NICS
    try:
        pair = await open_pair_for(routes[0], MESSAGES, INLINE_BYTES)
    except Unsupported as error:
        return error.reason
    if pair is None:
        return _NOT_NICS
    keys = [route.keys(pair.domain) for route in routes]
    found = [each for each in keys if each is not None]
    why = _NOT_NICS if len(found) != len(keys) else ""
    if not why and not found[0][1].atomics:
        why = "the peer's NIC carries out no atomics"
    if not why and pair.endpoint.max_inline < _WORD:
        why = "the NIC takes no bytes within a request"
    if why:
        pair.close()
        return why
    *local_keys, scratch_key = [local for local, _ in found]
    theirs = found[0][1]
    return Opened(pair, theirs.address, theirs.keys[0], local_keys, scratch_key)


class Pair:
    """Holds the queue that kernels write their requests for one peer to.

    Attributes:
        queue: the queue.
        address: where the peer's entry in the descriptor leads to.
    """

    def __init__(self, ctx: Context, device: str, timeout: float, opened: Opened, scratch: int) -> None:
        """Make the memory that kernels need. ``scratch``: address of two words that the NIC may write."""
        self.queue = PeerQueue(opened.pair.endpoint, ctx, device, timeout)
        self._memory = ctx.alloc(_WORD * (_HEAD_WORDS + max(1, len(opened.local_keys))), device)
        self.address = self._memory.address
        lock = self.address + _WORD * (_HEAD_WORDS - 1)
        keys = self.address + _WORD * _HEAD_WORDS
        head = (self.queue.pointer, opened.remote_key, scratch, scratch + _WORD, opened.scratch_key, lock, keys, 0)
        self._memory.write_bytes(0, np.array([*head, *opened.local_keys], np.uint64).tobytes())

    def check(self, peer: str) -> None:
        """Raise the first failure of what kernels have posted to this peer, whose id is given.

        Raises:
            AccessDenied, PeerLost, DeviceFailed, DeadlineExceeded: as KernelQueue.check.
        """
        try:
            self.queue.check()
        except ZerohopError as error:
            raise type(error)(
                error.reason, fix="make another Queue", peer=peer, provider="verbs", operation="device.Queue"
            ) from None

    def close(self) -> None:
        """Close the queue, and this side's end of the queue pair. The memory stays as long as this."""
        self.queue.endpoint.close()
