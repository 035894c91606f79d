"""Lets a peer of this host use further shares of memory that it has without asking. On the control thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from zerohop.core.control import wire

if TYPE_CHECKING:
    from zerohop.core.control.channel import Channel
    from zerohop.core.memory.local_share import LocalShare
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Shares that are granted in one turn of the loop.
_AT_ONCE: Final = 512


def grant_further(core: PeerCore, link: PeerLink, channel: Channel) -> None:
    """Give a peer its table of grants, before the first allocation that it gets; a peer that is left gets none."""
    begun = None if link.closing is not None else core.shares.begin_granting(link)
    if begun is None:
        return
    table, shares = begun
    try:
        channel.post(wire.GrantTable(nfds=1), [table.fd])
    except OSError:  # no number is left for a copy of the descriptor: the peer asks for each share
        core.shares.stop_granting(link)
        return
    finally:
        table.close_fd()
    link.start(_grant, core, link, shares)


async def _grant(core: PeerCore, link: PeerLink, shares: list[LocalShare]) -> None:
    for start in range(0, len(shares), _AT_ONCE):
        core.shares.grant(link, shares[start : start + _AT_ONCE])
        await asyncio.sleep(0)  # there may be very many, and others wait for this thread
