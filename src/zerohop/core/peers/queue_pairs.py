"""Opens and closes queue pairs for kernels, on the first NIC of a verbs lane. All functions run on the control thread.

The side with the kernels makes a queue pair, and calls a service of the peer with its address. The peer makes one on
the NIC at the other end, connects the two, and answers with its address and a number. The peer posts nothing to its
queue pair, and keeps it until the caller closes it by that number, or the link is lost.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from zerohop._native import FabricEndpoint, NativeError, Status
from zerohop.config.providers import VERBS
from zerohop.core.peers.peer_link import After
from zerohop.core.peers.service import Refusal
from zerohop.errors import ProtocolError, from_native

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zerohop.core.lanes.lane import Lane
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.peers.service import Service

_OPEN: Final = "open queue pair"
_CLOSE: Final = "close queue pair"
# A call begins with the number of the lane, and an answer with the number by which the queue pair is closed. The six
# numbers of FabricEndpoint.address() follow, 1 if there is a GID, and the GID. An empty answer says that the lane has
# gone down.
_ADDRESS: Final = struct.Struct(">IIIHBBBB16s")
_NUMBER: Final = struct.Struct(">I")
_GID_BYTES: Final = 16
_PASSIVE_MESSAGES: Final = 1  # places of the side that has no kernels, which posts nothing
_MOST_OF_A_PEER: Final = 1024


class QueuePair:
    """Holds a queue pair to a peer.

    Attributes:
        endpoint: this side's queue pair; it is connected.
        domain: number of the NIC port that it is on.
    """

    def __init__(self, link: PeerLink, endpoint: FabricEndpoint, number: int, domain: int) -> None:
        self._link = link
        self._number = number
        self._closed = False
        self.endpoint = endpoint
        self.domain = domain

    def close(self) -> None:
        """Close it at both ends; idempotent. Any thread may call this."""
        if not self._closed:
            self.endpoint.close()
            self._link.core.control.call(_close_at_peer, self._link, self._number)
            self._closed = True


async def open_queue_pair(link: PeerLink, lane: Lane, messages: int, inline_bytes: int) -> QueuePair | None:
    """Return a queue pair to a peer, on the first NICs of a lane; None if the lane has gone down at the peer.

    Args:
        link: the link to the peer.
        lane: a lane over NICs, which is up.
        messages: the most requests under way.
        inline_bytes: the most bytes that a request carries itself.

    Raises:
        Unsupported: the peer makes no such queue pairs, or the two cannot be connected.
        RegistrationFailed, DeviceFailed, PeerLost, ProtocolError, DeadlineExceeded: as for a lane.
    """
    session = link.session
    assert session is not None
    domain = lane.domains[0]

    def close_late(body: bytes) -> None:
        if len(body) == _ADDRESS.size:
            _close_at_peer(link, _ADDRESS.unpack(body)[0])

    try:
        with _closed_on_error(FabricEndpoint.on_port(domain, messages, inline_bytes)) as endpoint:
            body = await session.call(_OPEN, _pack(lane.number, endpoint), After(late=close_late))
            if not body:
                endpoint.close()
                return None
            if len(body) != _ADDRESS.size:
                raise ProtocolError("malformed: the address of a queue pair", peer=link.peer)
            try:
                _connect(endpoint, body)
            except NativeError:
                close_late(body)
                raise
            return QueuePair(link, endpoint, _ADDRESS.unpack(body)[0], domain.number)
    except NativeError as error:
        raise from_native(*error.args, peer=link.peer, provider=VERBS) from None


def _open_for_peer(link: PeerLink, body: bytes) -> bytes:
    if len(body) != _ADDRESS.size:
        raise Refusal(Status.PROTOCOL, "the address of a queue pair is malformed")
    lane = link.lanes.get(_ADDRESS.unpack(body)[0])
    if lane is None or lane.provider != VERBS:
        return b""  # it has gone down
    if len(link.queue_pairs) >= _MOST_OF_A_PEER:
        raise Refusal(
            Status.UNSUPPORTED, f"the peer keeps {_MOST_OF_A_PEER} queue pairs for this process already; close Queues"
        )
    try:
        with _closed_on_error(FabricEndpoint.on_port(lane.domains[0], _PASSIVE_MESSAGES, 0)) as endpoint:
            _connect(endpoint, body)
            number = link.next_queue_pair
            answer = _pack(number, endpoint)
            link.next_queue_pair += 1
            link.queue_pairs[number] = endpoint
            return answer
    except NativeError as error:
        raise Refusal(Status.UNSUPPORTED, from_native(*error.args).reason) from None


def _close_for_peer(link: PeerLink, body: bytes) -> bytes:
    closed = link.queue_pairs.pop(_NUMBER.unpack(body)[0], None) if len(body) == _NUMBER.size else None
    if closed is not None:
        closed.close()
    return b""


# The services that every Context has.
SERVICES: Final[Mapping[str, Service]] = {_OPEN: _open_for_peer, _CLOSE: _close_for_peer}


def _close_at_peer(link: PeerLink, number: int) -> None:
    if link.session is not None:
        link.session.send(_CLOSE, _NUMBER.pack(number))


@contextmanager
def _closed_on_error(endpoint: FabricEndpoint) -> Iterator[FabricEndpoint]:
    try:
        yield endpoint
    except BaseException:
        endpoint.close()
        raise


def _pack(number: int, endpoint: FabricEndpoint) -> bytes:
    *numbers, gid = endpoint.address()
    return _ADDRESS.pack(number, *numbers, len(gid) == _GID_BYTES, gid or bytes(_GID_BYTES))


def _connect(endpoint: FabricEndpoint, body: bytes) -> None:
    _, number, psn, lid, link_layer, mtu, read_credit, has_gid, gid = _ADDRESS.unpack(body)
    endpoint.connect(number, psn, lid, link_layer, mtu, read_credit, gid if has_gid else b"")
