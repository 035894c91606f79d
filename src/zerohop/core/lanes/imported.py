"""Describes a peer's shared memory that this side has imported.

Shares of one allocation of the peer's share one mapping of it here, or two if some of them may be written to and others
not. Each share is a part of the mapping, with bounds, rights and users of its own.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from zerohop._native import PeerMemory, RemoteKeys

if TYPE_CHECKING:
    from zerohop._native import Mapping
    from zerohop.core.control import wire
    from zerohop.core.lanes.lane import Lane
    from zerohop.core.memory.registration import Registration


class Allocation:
    """Holds an allocation of the peer, mapped here or reached by devices here, for as long as imports use it.

    ``whole`` is the mapping, or the memory that devices here reach. ``address`` is the owner's, and ``extent`` the
    owner's number of the memory that it is, or is a part of. ``lock`` is held while ``imports`` changes. ``links`` has
    the hardware link that devices use, by the device number of the memory here, once that was tried.
    """

    __slots__ = (
        "address",
        "device",
        "extent",
        "imports",
        "links",
        "lock",
        "number",
        "provider",
        "ready",
        "whole",
        "writable",
    )

    def __init__(self, message: wire.Allocation, whole: Mapping | PeerMemory, device: str = "") -> None:
        self.number = message.number
        self.provider = message.provider
        self.whole = whole
        self.extent = message.extent
        self.address = message.address
        self.writable = message.writable
        self.lock = threading.RLock()
        # Identity of the peer's device that has the memory; empty for host memory.
        self.device = device
        self.links: dict[int, str] = {}
        # Registrations of memory here that devices can copy to and from the peer's memory.
        self.ready: weakref.WeakSet[Registration] = weakref.WeakSet()
        # Imports that are not closed yet.
        self.imports: set[Import] = set()

    @property
    def users(self) -> int:
        """Return the number of imports that are not closed yet."""
        return len(self.imports)

    def contains(self, provider: str, extent: int, writable: bool, address: int, nbytes: int) -> bool:
        """Tell whether a share of the owner lies in it. Files come twice: for writers, and for readers."""
        return (
            (self.provider, self.extent) == (provider, extent)
            and (bool(self.device) or self.writable == writable)
            and self.address <= address
            and address + nbytes <= self.address + self.whole.nbytes
        )


class Taking:
    """Notes that a share of the peer is taken without asking: its name in the table of grants, and its import."""

    __slots__ = ("imported", "name")

    def __init__(self, name: tuple[int, bytes, bool]) -> None:
        self.name = name
        self.imported: Import | None = None


class Kept:
    """Keeps an import from being given back where there are very many; the owner may take it back all the same."""

    __slots__ = ("__weakref__", "_imported")

    def __init__(self, imported: Import) -> None:
        self._imported = imported
        if imported.keepers is None:
            imported.keepers = weakref.WeakSet()
        imported.keepers.add(self)


class Import:
    """Holds a peer's shared memory as the peer described it in its reply.

    ``access`` is a part of the mapping of ``allocation``, a part of the memory that devices here reach, or keys for the
    peer's NICs. ``rails`` are the places of those NICs, and ``how`` says how they have registered the memory; without
    keys both are empty.
    """

    __slots__ = (
        "_left",
        "access",
        "allocation",
        "capability",
        "closed",
        "how",
        "keepers",
        "nbytes",
        "rails",
        "rights",
        "routes",
    )

    def __init__(
        self,
        access: Mapping | RemoteKeys | PeerMemory,
        capability: bytes,
        nbytes: int,
        rights: int,
        rails: tuple[int, ...] = (),
        how: str = "",
        allocation: Allocation | None = None,
        taking: Taking | None = None,
    ) -> None:
        self.access = access
        self.capability = capability
        self.nbytes = nbytes
        self.rights = rights
        self.rails = rails
        self.how = how
        self.allocation = allocation
        # Routes that use it; each takes itself out when it is dropped.
        self.routes: dict[Any, None] = {}
        # It stays as long as one of these lives, whether it has routes or not. None: there was none.
        self.keepers: weakref.WeakSet[Kept] | None = None
        self.closed = False
        # Whether `access` is closed.
        self._left = False
        # In this order: a signal's handler may cut this short; the import must be known then, and count once at most.
        if taking is not None:
            taking.imported = self
        if allocation is not None:
            with allocation.lock:
                allocation.imports.add(self)

    def close(self) -> bool:
        """Refuse new operations and release the memory, with the last import of an allocation that allocation, too.

        Return False while an operation uses it; call again then, and not after it has returned True.
        """
        if not self.closed:
            self.closed = True
            for route in list(self.routes):
                route.drop()
        if not self._left:
            if not self.access.close():
                return False
            self._left = True
            if self.allocation is not None:
                with self.allocation.lock:
                    self.allocation.imports.discard(self)
        return self.allocation is None or self.allocation.users > 0 or self.allocation.whole.close()

    def access_over(self, registration: Registration, lane: Lane) -> dict[str, Any]:
        """Return what a route needs to reach the memory: a mapping, the memory itself, or the keys of both sides."""
        access = self.access
        if isinstance(access, RemoteKeys):
            local_keys = [registration.local_keys[domain.number] for domain in lane.domains]
            return {"mapping": None, "keys": access, "local_keys": local_keys}
        if isinstance(access, PeerMemory):
            return {"mapping": None, "peer_memory": access}
        return {"mapping": access}
