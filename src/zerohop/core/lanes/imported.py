"""Describes a peer's shared memory that this side has imported."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from zerohop._native import PeerMemory, RemoteKeys

if TYPE_CHECKING:
    from zerohop._native import Mapping
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.memory.registration import Registration


class Import:
    """Holds a peer's shared memory as the peer described it in its reply.

    ``access`` is a mapping, memory that devices here reach, or keys for the peer's NICs. ``rails`` are the places of
    those NICs, and ``how`` says how they have registered the memory; without keys both are empty. ``links`` has the
    hardware link that devices use, by the device number of the memory here, once that was tried.
    """

    __slots__ = (
        "access",
        "capability",
        "closed",
        "device",
        "how",
        "links",
        "nbytes",
        "rails",
        "ready",
        "rights",
        "routes",
    )

    def __init__(
        self,
        access: Mapping | RemoteKeys | PeerMemory,
        capability: bytes,
        nbytes: int,
        rights: int,
        rails: tuple[int, ...],
        how: str = "",
        device: str = "",
    ) -> None:
        self.access = access
        self.capability = capability
        self.nbytes = nbytes
        self.rights = rights
        self.rails = rails
        self.how = how
        # Identity of the peer's device that has the memory; empty for host memory.
        self.device = device
        self.links: dict[int, str] = {}
        # Registrations of memory here that devices can copy to and from the peer's memory.
        self.ready: weakref.WeakSet[Registration] = weakref.WeakSet()
        self.routes: weakref.WeakSet[Any] = weakref.WeakSet()
        self.closed = False

    def close(self) -> bool:
        """Refuse new operations and release the memory. Return False while an operation uses it; call again then."""
        self.closed = True
        for route in list(self.routes):
            route.drop()
        return self.access.close()

    def access_over(self, registration: Registration, lane: Lane) -> dict[str, Any]:
        """Return what a route needs to reach the memory: a mapping, the memory itself, or the keys of both sides."""
        access = self.access
        if isinstance(access, RemoteKeys):
            local_keys = [registration.local_keys[domain.number] for domain in lane.domains]
            return {"mapping": None, "keys": access, "local_keys": local_keys}
        if isinstance(access, PeerMemory):
            return {"mapping": None, "peer_memory": access}
        return {"mapping": access}
