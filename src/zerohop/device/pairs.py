"""Declares Pair: how kernels reach one peer through a queue pair of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from zerohop.core.face import RDMA, open_pair_for
from zerohop.device.status import TIMED_OUT
from zerohop.errors import DeadlineExceeded, Unsupported, ZerohopError
from zerohop.fabric.peer_queue import INLINE_BYTES, MESSAGES, PeerQueue

if TYPE_CHECKING:
    from zerohop.core.face import Context, QueuePair, RemoteBuffer, Route

_WORD: Final = 8
_HEAD_WORDS: Final = 8  # Pair of zerohop/device/pair.hpp, and the word of its lock
_AUTO: Final = 'mode="auto", which goes through this process where it must'


class ConnectedPair(NamedTuple):
    """Holds a queue pair to a peer, and the keys by which requests name memory.

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


def check_handle(number: int, remote: RemoteBuffer) -> None:
    """Raise Unsupported for a handle that no queue pair can be used for; ``number``: its index in the list."""
    if "r" not in remote.rights:
        raise Unsupported(
            f"the handle of peer {number} gives no right to read, and kernels read a byte back to know that their "
            "writes have arrived",
            fix=f'share the memory with rights="rw"; or {_AUTO}',
            peer=remote.owner,
        )
    if remote.nbytes == 0:
        raise Unsupported(f"the memory of peer {number} is empty", fix="leave it out of peers", peer=remote.owner)


async def open_pair(number: int, remote: RemoteBuffer, routes: list[Route]) -> ConnectedPair | None:
    """Return a queue pair to the owner of a handle; None if the lane has gone down meanwhile. On the control thread.

    ``routes``: from each local, and from the scratch memory behind them.

    Raises:
        Unsupported: there can be none.
        RegistrationFailed, DeviceFailed, PeerLost, ProtocolError, DeadlineExceeded: as for a lane.
    """
    if len({route.lane for route in routes}) != 1 and not any(route.stale for route in routes):
        raise Unsupported(
            f"this Queue's memory reaches peer {number} over several lanes, and a queue pair belongs to one",
            fix=f'Context(providers=["verbs"]) on both sides; or {_AUTO}',
            peer=remote.owner,
        )
    pair = await open_pair_for(routes[0], MESSAGES, INLINE_BYTES)
    if pair is None:
        if routes[0].stale or routes[0].explanation.form == RDMA:  # the lane has gone down, here or at the peer
            return None
        raise Unsupported(
            f"the way to peer {number} is {routes[0].explanation}, and not RDMA by NICs",
            fix=f'Context(providers=["verbs"]) on both sides; or {_AUTO}',
            peer=remote.owner,
        )
    try:
        connected = _with_keys(number, pair, routes)
    except BaseException:
        pair.close()
        raise
    if connected is None:
        pair.close()
    return connected


def _with_keys(number: int, pair: QueuePair, routes: list[Route]) -> ConnectedPair | None:
    keys = [route.nic_keys(pair.domain) for route in routes]
    found = [each for each in keys if each is not None]
    if len(found) != len(keys):
        return None
    theirs = found[0][1]
    if not theirs.atomics:
        raise Unsupported(f"the NIC of peer {number} carries out no atomics", fix=_AUTO, peer=routes[0].peer)
    if pair.endpoint.max_inline < _WORD:
        raise Unsupported("the NIC here takes no 8 bytes within a request", fix=_AUTO)
    *local_keys, scratch_key = [local for local, _ in found]
    return ConnectedPair(pair, theirs.address, theirs.keys[0], local_keys, scratch_key)


class Pair:
    """Holds the queue that kernels write their requests for one peer to.

    Attributes:
        queue: the queue.
        memory: what kernels read and write, beside the queue's own.
        address: address of the Pair of zerohop/device/pair.hpp, for the peer's entry in the descriptor.
    """

    def __init__(self, ctx: Context, device: str, timeout: float, connected: ConnectedPair, scratch: int) -> None:
        """Make the memory that kernels need. ``scratch``: address of two words that the NIC may write."""
        self.queue = PeerQueue(connected.pair.endpoint, ctx, device, timeout)
        self.memory = ctx.alloc(_WORD * (_HEAD_WORDS + max(1, len(connected.local_keys))), device)
        self.address = self.memory.address
        lock = self.address + _WORD * (_HEAD_WORDS - 1)
        keys = self.address + _WORD * _HEAD_WORDS
        head = (self.queue.pointer, connected.remote_key, scratch, scratch + _WORD, connected.scratch_key, lock, keys)
        self.memory.write_bytes(0, np.array([*head, 0, *connected.local_keys], np.uint64).tobytes())

    def check(self, number: int, peer: str) -> None:
        """Raise the failure of the queue pair; return if it has none.

        ``number`` and ``peer``: index in the list of peers, and the id of the peer.

        Raises:
            AccessDenied, PeerLost, DeviceFailed: a request was refused or failed.
            DeadlineExceeded: a kernel found no free place in time.
        """
        try:
            self.queue.raise_failure()
        except ZerohopError as error:
            fix = "get a new handle if the peer has taken this memory back, and make another Queue"
            raise type(error)(
                f"a request for peer {number}: {error.reason}", fix=fix, peer=peer, operation="device.Queue"
            ) from None
        if self.queue.state == TIMED_OUT:
            raise DeadlineExceeded(
                f"a kernel found no free place in the send queue to peer {number} for longer than the Queue's timeout",
                fix="run kernels within `with queue.active():`, and make another Queue",
                peer=peer,
            )

    def close(self) -> None:
        """Close the queue, and this side's end of the queue pair. The memory stays as long as something pins it."""
        self.queue.endpoint.close()
