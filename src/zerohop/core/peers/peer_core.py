"""Declares PeerCore, the part of a Context's core that the code for peers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from zerohop.core.lanes.lane_core import LaneCore
from zerohop.errors import PeerLost

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from zerohop.core.control.handshake import Identity
    from zerohop.core.lanes.routes import Routes
    from zerohop.core.peers.arrivals import Arrivals
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.peers.service import Service
    from zerohop.errors import ZerohopError

# What a side says to its peers as it closes its whole Context.
CLOSES_CONTEXT: Final = "the peer closed its Context"
# Number of links beyond which lost ones are dropped. Until then notifications from before the loss name a Connection.
_REMEMBERED: Final = 1024


class Watcher(Protocol):
    """Hears of lost peers."""

    def peer_lost(self, link: PeerLink, error: ZerohopError) -> None:
        """Handle the loss of a peer, on the control thread."""


class PeerCore(LaneCore):
    """Adds to LaneCore the peers of a Context. Used on the control thread, but any thread reads the tables.

    Attributes:
        identity: the data by which peers recognise this Context in a handshake.
        routes: the paths between pairs of memories.
        connected: the links that operations may use, by id of the peer Context.
        introduced: all links that have a native id, by that id; lost ones stay for a while.
        connections: for each of these, the Connection that users see. Notifications name it, even those of lost peers.
        young: links that have no lane for messages yet.
        services: services that faces have added, by name.
        arrivals: the peers that have connected by themselves and that nobody has asked for.
        watchers: objects of faces that hear of lost peers, by ``id()``.
        make_connection: makes the Connection of a link.
    """

    identity: Identity
    routes: Routes
    connected: dict[str, PeerLink]
    introduced: dict[int, PeerLink]
    connections: dict[int, Any]
    young: set[PeerLink]
    services: dict[str, Service]
    arrivals: Arrivals
    watchers: weakref.WeakValueDictionary[int, Watcher]
    make_connection: Callable[[PeerLink], Any]

    def introduce(self, link: PeerLink) -> None:
        """Enter a link that has a native id from now on, and make its Connection."""
        self.introduced[link.native_id] = link
        self.connections[link.native_id] = self.make_connection(link)
        if len(self.introduced) > _REMEMBERED:
            for native_id, old in self.introduced.copy().items():
                if old.lost is not None:
                    del self.introduced[native_id], self.connections[native_id]
                    break

    def connection_of(self, native_id: int) -> Any:
        """Return the Connection of a native id; an unnamed, lost one if it is long gone."""
        connection = self.connections.get(native_id)
        if connection is None:
            from zerohop.core.peers.peer_link import PeerLink

            link = PeerLink(self, "")
            link.lost = PeerLost("the peer is long gone")
            connection = self.make_connection(link)
        return connection
