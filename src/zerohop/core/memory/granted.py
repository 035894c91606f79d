"""Grants shares to peers of this host, which then use them for the first time without asking.

Each such peer has a table of its own, in memory that both processes map (native/memory/grants.hpp). A share is written
into all of them when it is made, and taken out when it is revoked; that step tells which peers have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zerohop._native import Grants, NativeError
from zerohop.config.providers import P2P, SHM
from zerohop.core.control.auth import grant_key
from zerohop.core.memory.remote_buffer import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zerohop.core.memory.local_share import LocalShare, Peer

# The ways to take a share, in the order of the native table.
WAYS: Final = (SHM, P2P)


class Granted:
    """Holds the tables of a Context's peers. The caller holds the lock of the shares.

    Attributes:
        tables: those in which new shares are granted.
    """

    def __init__(self) -> None:
        self.tables: dict[Peer, Grants] = {}
        # The tables of peers to which nothing more is granted.
        self._stopped: dict[Peer, Grants] = {}

    def begin(self, peer: Peer) -> Grants | None:
        """Make the table of a peer, to which shares are granted from now on; None if it has one, or there can be none.

        The caller passes its descriptor on, and then closes it.
        """
        if peer in self.tables or peer in self._stopped:
            return None
        try:
            table = self.tables[peer] = Grants()
        except NativeError:  # no memory, no descriptor, or a sandbox: the peer asks for each share, as on other hosts
            return None
        return table

    def grant(self, share: LocalShare) -> None:
        """Let all peers that have a table take a new share."""
        _grant(self.tables.values(), share)

    def grant_to(self, peer: Peer, shares: Iterable[LocalShare]) -> None:
        """Let one peer take shares that there were before it had a table."""
        table = self.tables.get(peer)
        if table is not None:
            for share in shares:
                _grant((table,), share)

    def revoke(self, share: LocalShare) -> None:
        """Let no peer take a share any more, and count those that have taken it as its importers."""
        for peer, table in self.tables.items():
            _revoke(peer, table, share)

    def stop(self, peer: Peer, shares: Iterable[LocalShare]) -> None:
        """Let a peer take nothing more, and count it as an importer of what it has."""
        table = self.tables.pop(peer, None)
        if table is not None:
            self._stopped[peer] = table
            for share in shares:
                _revoke(peer, table, share)

    def close(self, shares: Iterable[LocalShare]) -> None:
        """Let no peer take anything more, and drop all tables."""
        for share in shares:
            self.revoke(share)
        self.tables.clear()
        self._stopped.clear()

    def forget(self, peer: Peer) -> None:
        """Drop the table of a peer that is lost."""
        self.tables.pop(peer, None)
        self._stopped.pop(peer, None)

    def keeps(self, peer: Peer, provider: str, share: LocalShare) -> bool:
        """Tell whether a peer has taken a share that was revoked since, and has not given it back.

        It may have said so of an earlier import of the share.
        """
        table = self.tables.get(peer) or self._stopped.get(peer)
        return table is not None and provider in WAYS and table.kept(*_named(share), provider == P2P)


def _grant(tables: Iterable[Grants], share: LocalShare) -> None:
    # A table may have no place for a share: its peer then asks for it.
    registration, described = share.registration, share_of(share.handle)
    if described.nbytes:
        where = registration.extent.number, registration.address + share.offset, described.nbytes, described.rights
        share_id, key = _named(share)
        for table in tables:
            table.grant(share_id, key, *where)


def _revoke(peer: Peer, table: Grants, share: LocalShare) -> None:
    taken = table.revoke(*_named(share))
    share.importers.update((peer, provider) for provider, has in zip(WAYS, taken, strict=True) if has)


def _named(share: LocalShare) -> tuple[int, bytes]:
    described = share_of(share.handle)
    return described.share_id, grant_key(described.capability)
