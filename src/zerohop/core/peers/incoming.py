"""Holds the peers that have connected by themselves until ``Context.accept`` asks for them."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.runtime.deferred import defer, while_waiting
from zerohop.errors import silent_error

if TYPE_CHECKING:
    import asyncio

    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.deferred import Deferred
    from zerohop.core.runtime.operation import Operation

# Number of links beyond which lost ones are dropped.
_MANY: Final = 64


class Incoming:
    """Hands each link to one caller, in the order in which the links came up. Used on the control thread."""

    def __init__(self) -> None:
        self._links: collections.deque[PeerLink] = collections.deque()
        self._waiting: collections.deque[asyncio.Future[PeerLink]] = collections.deque()
        self._many = _MANY

    def add(self, link: PeerLink, *, first: bool = False) -> None:
        """Hand a link to the caller that has waited longest, or keep it; ``first``: before those that are kept."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(link)
                return
        if len(self._links) >= self._many:
            self._links = collections.deque(each for each in self._links if each.alive)
            self._many = max(_MANY, 2 * len(self._links))
        if first:
            self._links.appendleft(link)
        else:
            self._links.append(link)

    async def take(self) -> PeerLink:
        """Return the next link that is alive, as soon as there is one."""
        while True:
            link = self._links.popleft() if self._links else await self._next()
            if link.alive:
                return link

    async def _next(self) -> PeerLink:
        import asyncio  # here because `import zerohop` alone needs none of it

        future: asyncio.Future[PeerLink] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # the link came in the same turn of the loop
                self.add(future.result(), first=True)
            raise


def accept(core: PeerCore, incoming: Incoming, deadline_ns: int) -> Operation[Any]:
    """Do Context.accept."""
    taken: list[tuple[Deferred[Any], PeerLink]] = []

    async def work(operation: Deferred[Any]) -> Any:
        while_waiting(lambda: silent_error("", "no peer has connected"))
        link = await incoming.take()
        taken.append((operation, link))
        return core.connection_of(link.native_id)

    def give_back() -> None:
        for operation, link in taken:
            try:
                operation.result()
            except Exception:  # noqa: BLE001 - it was cancelled, or too late, while the link came: the next gets it
                incoming.add(link, first=True)
        taken.clear()

    return defer(core, "accept", 0, deadline_ns, work, None, wants_operation=True, at_end=give_back)
