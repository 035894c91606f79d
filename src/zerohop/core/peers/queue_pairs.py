"""Makes queue pairs that only kernels of one side post to, beside a lane over NICs. On the control thread.

The side with the kernels makes a queue pair on the first NIC of the lane, and calls a service of the peer with its
address. The peer makes one on the NIC at the other end, connects the two, and answers with its address. The peer's
stays until the caller has closed the pair, or the link is lost: NICs then move bytes without the peer's process.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from zerohop._native import FabricEndpoint, NativeError, Status
from zerohop.config.providers import VERBS
from zerohop.core.peers.service import Refusal
from zerohop.errors import ProtocolError, from_native

if TYPE_CHECKING:
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.peers.peer_link import PeerLink

SERVICE: Final = "kernels' queue pair"
# Number of the lane, then what FabricEndpoint.address() gives, with 1 if there is a GID before the GID.
_ADDRESS: Final = struct.Struct(">IIIHBBBB16s")
_CLOSE: Final = struct.Struct(">I")  # the number of the queue pair
_GID_BYTES: Final = 16
# Number of requests of the side that has no kernels, which posts none.
_PASSIVE_MESSAGES: Final = 1
_MOST: Final = 1024  # queue pairs that one peer may ask for


class QueuePair:
    """Holds a queue pair to a peer.

    Attributes:
        endpoint: this side's queue pair; it is connected.
        domain: number of the NIC port that it is on.
    """

    def __init__(self, link: PeerLink, endpoint: FabricEndpoint, theirs: int, domain: int) -> None:
        self._link = link
        self._theirs = theirs
        self._closed = False
        self.endpoint = endpoint
        self.domain = domain

    def close(self) -> None:
        """Close it at both ends; idempotent. Any thread may call this."""
        if not self._closed:
            self._closed = True
            self.endpoint.close()
            self._link.core.control.call(self._close_at_peer)

    def _close_at_peer(self) -> None:
        if self._link.session is not None:
            self._link.session.send(SERVICE, _CLOSE.pack(self._theirs))


async def open_queue_pair(link: PeerLink, lane: Lane, messages: int, inline_bytes: int) -> QueuePair:
    """Return a queue pair to a peer, on the first NICs of a lane.

    Args:
        link: the link to the peer.
        lane: a lane over NICs, which is up.
        messages: how many requests may be under way.
        inline_bytes: bytes that a request may carry.

    Raises:
        Unsupported: the peer makes no such queue pairs, or the two cannot be connected.
        RegistrationFailed, DeviceFailed, PeerLost, DeadlineExceeded: as for a lane.
    """
    domain = lane.domains[0]
    assert link.session is not None
    endpoint = None
    try:
        endpoint = FabricEndpoint.on(domain, messages, inline_bytes)
        answer = await link.session.call(SERVICE, _pack(lane.number, endpoint))
        _, theirs = _connect(endpoint, answer)
    except BaseException as error:
        if endpoint is not None:
            endpoint.close()
        if isinstance(error, NativeError):
            raise from_native(*error.args, peer=link.peer, provider=VERBS) from None
        if isinstance(error, struct.error):
            raise ProtocolError("malformed: the address of a queue pair", peer=link.peer) from None
        raise
    return QueuePair(link, endpoint, theirs, domain.number)


def answer(link: PeerLink, body: bytes) -> bytes:
    """Make this side's end of a queue pair that the peer's kernels post to, or close one."""
    if len(body) == _CLOSE.size:
        closed = link.queue_pairs.pop(_CLOSE.unpack(body)[0], None)
        if closed is not None:
            closed.close()
        return b""
    if len(body) != _ADDRESS.size:
        raise Refusal(Status.PROTOCOL, "the address of a queue pair is malformed")
    lane = link.lanes.get(_ADDRESS.unpack(body)[0])
    if lane is None or lane.provider != VERBS:
        raise Refusal(Status.PEER_LOST, "the lane of the queue pair is down")
    if len(link.queue_pairs) >= _MOST:
        raise Refusal(Status.UNSUPPORTED, f"{_MOST} queue pairs are in use already; close a Queue")
    endpoint = None
    try:
        endpoint = FabricEndpoint.on(lane.domains[0], _PASSIVE_MESSAGES, 0)
        _connect(endpoint, body)
    except BaseException as error:
        if endpoint is not None:
            endpoint.close()
        if isinstance(error, NativeError):
            raise Refusal(Status.UNSUPPORTED, from_native(*error.args).reason) from None
        raise
    link.queue_pairs[endpoint.address()[0]] = endpoint
    return _pack(lane.number, endpoint)


def _pack(lane: int, endpoint: FabricEndpoint) -> bytes:
    *numbers, gid = endpoint.address()
    return _ADDRESS.pack(lane, *numbers, len(gid) == _GID_BYTES, gid or bytes(_GID_BYTES))


def _connect(endpoint: FabricEndpoint, body: bytes) -> tuple[int, int]:
    """Connect to the queue pair of a packed address; return the number of its lane and its own."""
    lane, number, psn, lid, link_layer, mtu, read_credit, has_gid, gid = _ADDRESS.unpack(body)
    endpoint.connect(number, psn, lid, link_layer, mtu, read_credit, gid if has_gid else b"")
    return lane, number
