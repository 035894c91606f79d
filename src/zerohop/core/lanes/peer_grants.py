"""Takes a peer's shares that it has granted, so that their first use asks nobody and waits for nobody.

The peer writes its shares into a table that both processes map (native/memory/grants.hpp). A share can be taken once
an allocation that it lies in has come here, for another share; the peer is asked for any other one (import_client.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.config.providers import P2P, SHM
from zerohop.core.control.auth import grant_key
from zerohop.core.lanes.imported import Import, Taking
from zerohop.core.memory.rights import RIGHTS

if TYPE_CHECKING:
    from zerohop._native import Grants
    from zerohop.core.lanes.imported import Allocation
    from zerohop.core.lanes.link import Link
    from zerohop.core.memory.remote_buffer import Share

_WRITE: Final = 2
# Memories of the owner for which the allocation here is remembered.
_MAX_FOUND: Final = 1024


class PeerGrants:
    """Takes the shares of one peer, unless ``most`` of its shares are imported here. Any thread may call this."""

    def __init__(self, table: Grants, most: int) -> None:
        self._table = table
        self._most = most
        # Whether a thread is taking a share: a signal's handler, or a destructor, may want one in the middle of that.
        self._inside = False
        # The shares that are taken, by provider and share. The link's lock of imports is held while they change.
        self._taken: dict[tuple[str, int], Taking] = {}
        # The number of the allocation in which a share was found last, by provider and by what else decides.
        self._found: dict[tuple[str, int, bool], int] = {}

    def take(self, link: Link, provider: str, share: Share) -> Import | None:
        """Import a share; return None if its owner has to be asked."""
        if provider not in (SHM, P2P):
            return None
        key = provider, share.share_id
        # The owner may ask for the share as soon as it is taken, and must then find the import.
        with link.imports_lock:
            if key in link.imports:
                return link.imports[key]
            full = len(link.imports) >= self._most
            if self._inside or full or link.lost is not None or link.closing is not None or key in self._taken:
                return None
            self._inside = True
            try:
                return self._take(link, provider, share, key)
            finally:
                self._inside = False

    def cut_short(self, link: Link) -> list[tuple[str, int]]:
        """Return what was taken and is in no import: a signal's handler has cut that short, or its import ends."""
        with link.imports_lock:
            return [key for key in self._taken if key not in link.imports]

    def give_back(self, link: Link, key: tuple[str, int]) -> Import | None:
        """Give a share back of which no import is left here; do nothing if there is one, or if it was not taken.

        Return an import that a signal's handler has cut short: give the share back once that is released.
        """
        with link.imports_lock:
            # An earlier import may end while a later one was taken.
            taking = None if key in link.imports else self._taken.get(key)
            if taking is None:
                return None
            if taking.imported is not None and not taking.imported.closed:
                return taking.imported
            self._table.give_back(*taking.name)
            del self._taken[key]
            return None

    def _take(self, link: Link, provider: str, share: Share, key: tuple[str, int]) -> Import | None:
        name = share.share_id, grant_key(share.capability), provider == P2P
        # First, because a signal's handler may cut the rest short: what is noted is given back when its owner asks.
        taking = self._taken[key] = Taking(name)
        granted = self._table.take(*name)
        if granted is None:
            del self._taken[key]
            return None
        imported = self._import(link, provider, share, taking, *granted)
        if imported is None:
            self.give_back(link, key)
        else:
            link.imports[key] = imported
        return imported

    def _import(
        self,
        link: Link,
        provider: str,
        share: Share,
        taking: Taking,
        extent: int,
        address: int,
        nbytes: int,
        rights: int,
    ) -> Import | None:
        writable = bool(rights & _WRITE)
        allocation = self._allocation(link, (provider, extent, writable), address, nbytes)
        if allocation is None or rights not in RIGHTS.values():
            return None
        with allocation.lock:
            if not allocation.imports:  # it is being given back
                return None
            try:
                part = allocation.whole.part(address - allocation.address, nbytes, writable)
            except NativeError:  # the answer to a question says what is wrong with it
                return None
            return Import(part, share.capability, nbytes, rights, allocation=allocation, taking=taking)

    def _allocation(self, link: Link, place: tuple[str, int, bool], address: int, nbytes: int) -> Allocation | None:
        known = link.allocations.get(self._found.get(place, 0))
        if known is not None and known.contains(*place, address, nbytes):
            return known
        for allocation in list(link.allocations.values()):
            if allocation.contains(*place, address, nbytes):
                if len(self._found) >= _MAX_FOUND:
                    self._found.clear()
                self._found[place] = allocation.number
                return allocation
        self._found.pop(place, None)
        return None
