"""Gives the peer's memory back, and tells its owner so, once nothing here uses it any more. On the control thread."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from zerohop.core.control import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.core.control.channel import Channel
    from zerohop.core.lanes.imported import Allocation, Import
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Seconds between two attempts to release an import that is in use.
UNMAP_PAUSE_S: Final = 0.002

ShareKey = tuple[str, int]


class Releases:
    """Releases the imports of one Connection.

    Released covers all imports of a share. So it goes out once no import of the share is left here or asked for, in one
    message for all that ended in the same turn of the loop.
    """

    def __init__(self, core: PeerCore, link: PeerLink, channel: Channel) -> None:
        self._core = core
        self._link = link
        self._channel = channel
        # Counts of requests for shares without an answer; tasks that release an import.
        self._asking: Counter[ShareKey] = Counter()
        self.leaving: dict[ShareKey, asyncio.Task[None]] = {}
        # Shares for which Released is due once they are in neither of these.
        self.owed: set[ShareKey] = set()
        # What the next messages name: shares by provider, and allocations.
        self._released: dict[str, list[int]] = {}
        self._dropped: list[int] = []
        self._telling = False

    def on_release(self, message: wire.Release) -> None:
        """Handle Release: the owner wants memory back."""
        for share_id in message.shares:
            key = message.provider, share_id
            with self._link.imports_lock:
                imported = self._link.imports.pop(key, None)
            if imported is not None:
                self.release(key, imported)
            else:
                self.owed.add(key)
                self._tell_if_due(key)

    def give_back_cut_short(self) -> None:
        """Give back what a signal's handler has kept from becoming an import."""
        for key in [] if self._link.grants is None else self._link.grants.cut_short(self._link):
            self.owed.add(key)
            self._tell_if_due(key)

    def asking(self, key: ShareKey) -> None:
        """Note that the owner is asked for a share; call ``asked`` once it has answered."""
        self._asking[key] += 1

    def asked(self, key: ShareKey) -> None:
        """Note that the owner has answered."""
        self._asking[key] -= 1
        if self._asking[key] <= 0:
            del self._asking[key]
        self._tell_if_due(key)

    def release(self, key: ShareKey, imported: Import) -> None:
        """Release an import, and tell the owner when that is done."""
        self.owed.add(key)
        before = self.leaving.get(key)
        if before is None and imported.close():
            self._ended(key, imported)
            return
        task = self.leaving[key] = self._link.start(self._wait_unused, imported, before)

        def ended(task: asyncio.Task[None]) -> None:
            if self.leaving.get(key) is task:
                del self.leaving[key]
            if not task.cancelled():
                self._ended(key, imported)

        # A callback runs even if the task is cancelled before it has begun.
        task.add_done_callback(ended)

    async def _wait_unused(self, imported: Import, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await drained(imported)

    def _ended(self, key: ShareKey, imported: Import) -> None:
        self._forget_if_unused(imported)
        self._tell_if_due(key)

    def drop(self, imported: Import) -> None:
        """Drop an import that nothing uses, because there is another one of the same share."""
        if imported.close():
            self._forget_if_unused(imported)
        else:
            self._link.start(self._drop_import, imported)

    async def _drop_import(self, imported: Import) -> None:
        await drained(imported)
        self._forget_if_unused(imported)

    def _forget_if_unused(self, imported: Import) -> None:
        if imported.allocation is not None:
            self._forget_unused(imported.allocation)

    def drop_unclaimed(self, number: int, future: asyncio.Future[Allocation]) -> None:
        """Give back an allocation that no share was given of, or that could not be mapped here."""
        if future.cancelled() or future.exception() is not None:
            self._dropped.append(number)
            self._tell_soon()
        else:
            self._link.allocations[number] = future.result()
            self.drop_unused(number)

    def drop_unused(self, number: int) -> None:
        """Give back an allocation that is mapped here, unless an import uses it."""
        allocation = self._link.allocations.get(number)
        if allocation is not None and not allocation.users:
            self._link.start(self._drop, allocation)

    async def _drop(self, allocation: Allocation) -> None:
        while not allocation.users and not allocation.whole.close():  # noqa: ASYNC110 - no event tells a device's end
            await asyncio.sleep(UNMAP_PAUSE_S)
        self._forget_unused(allocation)

    def _forget_unused(self, allocation: Allocation) -> None:
        """Forget an allocation that is closed, and have the owner told that a new share of it must bring it again."""
        if not allocation.users and self._link.allocations.pop(allocation.number, None) is not None:
            self._dropped.append(allocation.number)
            self._tell_soon()

    def _tell_if_due(self, key: ShareKey) -> None:
        if key in self.owed and key not in self.leaving and key not in self._asking:
            cut_short = None if self._link.grants is None else self._link.grants.give_back(self._link, key)
            if cut_short is not None:
                self.release(key, cut_short)
                return
            self.owed.remove(key)
            self._released.setdefault(key[0], []).append(key[1])
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self.tell)

    def tell(self) -> None:
        """Post Released for all that was released by now."""
        self._telling = False
        released, self._released = self._released, {}
        dropped, self._dropped = self._dropped, []
        for provider, shares in released.items():
            for some in in_parts(shares):
                self._channel.post(wire.Released(provider=provider, shares=some))
        for some in in_parts(dropped):
            self._channel.post(wire.Released(provider="", shares=[], allocations=some))


def in_parts(numbers: list[int]) -> Iterator[list[int]]:
    """Yield the numbers in parts, each of which one message may name."""
    for start in range(0, len(numbers), wire.MAX_SHARES):
        yield numbers[start : start + wire.MAX_SHARES]


def unmap(core: PeerCore, imported: Import) -> None:
    """Release a peer's memory, now or when the last operation with it has ended."""
    if not imported.close():
        core.control.start(drained, imported)


async def drained(imported: Import) -> None:
    """Wait until nothing here uses a peer's memory."""
    # The last copies end within microseconds, and no event reports that.
    while not imported.close():  # noqa: ASYNC110
        await asyncio.sleep(UNMAP_PAUSE_S)
