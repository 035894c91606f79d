"""Handles the events of the engine: dead peers, lanes that are down, changed NIC ports. On the control thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from zerohop.core.lanes.link import lost_error
from zerohop.core.peers import teardown

if TYPE_CHECKING:
    from zerohop._native import Reason, Status
    from zerohop.core.peers.peer_core import PeerCore
    from zerohop.core.peers.peer_link import PeerLink

# Seconds to wait after a change, because an interface that comes up gets its addresses one after the other.
_SETTLING_S: Final = 0.1
# An event's token is the id of a peer that was found dead; or, with this bit, of one that has a lane that is down.
_LANE_DOWN: Final = 1 << 62
# With this bit the token is the number of a domain whose port or device changed its state.
_PORT_CHANGED: Final = 1 << 61


class EngineEvents:
    """Reads the events of one engine.

    Attributes:
        ending: links whose peer is dead while messages that it has sent before are still being handled.
    """

    def __init__(self, core: PeerCore) -> None:
        self._core = core
        self.ending: dict[PeerLink | None, asyncio.Task[None]] = {}
        # Whether `_look_again` is about to read the addresses of ports.
        self._looking_again = False
        # The descriptor of the events is kept here, because `stop` needs it when the engine is gone.
        self._fd = -1

    def start(self) -> None:
        """Have the running loop handle the events."""
        self._fd = self._core.engine.events.fd
        asyncio.get_running_loop().add_reader(self._fd, self.handle)

    def stop(self) -> None:
        """Handle no more events."""
        asyncio.get_running_loop().remove_reader(self._fd)

    def handle(self) -> None:
        """Handle what the engine has found: dead peers, lanes that are down, changed NIC ports."""
        engine = self._core.engine
        if self._core.gone:  # a close that did not wait for this thread was in the middle of its turn
            return
        changed: dict[int, None] = {}
        for token in engine.events.drain():
            if token & _PORT_CHANGED:
                changed[token & ~_PORT_CHANGED] = None
                continue
            link = self._core.introduced.get(token & ~_LANE_DOWN)
            if link is None or link.lost is not None:
                continue
            if token & _LANE_DOWN:
                if link.session is not None:
                    link.session.lanes.take_down_dead()
            else:
                self._on_peer_dead(link, *engine.peer_status(token))
        for number in changed:
            self._port_changed(number)

    def _on_peer_dead(self, link: PeerLink, status: Status, reason: Reason) -> None:
        """Lose a peer whose lanes have ended, after its earlier messages, such as Released, were handled."""
        session = link.session

        def lose() -> None:
            said = None if session is None else session.said()
            teardown.lose(self._core, link, said or lost_error(link, status, reason), status, reason)

        async def work() -> None:
            try:
                if session is not None:
                    await session.caught_up()
            finally:
                self.ending.pop(link, None)
                lose()

        if session is None or not session.unread():
            lose()
        elif link not in self.ending:
            self.ending[link] = link.start(work)

    def _port_changed(self, number: int) -> None:
        """Use a port again that came up, or give up the idle lanes of one that went down.

        A lost device counts as up, because it may be back and can then be opened anew. The addresses of a port that is
        up are read again, because a changed address is reported like a changed state.
        """
        nic_ports = self._core.nic_ports
        domain = nic_ports.domain(number)
        if domain is None:
            return
        if nic_ports.noticed(domain):
            for link in list(self._core.connected.values()):
                lanes = link.session.lanes if link.session is not None else None
                if domain.alive or domain.lost:
                    link.reconsider()
                    if lanes is not None:
                        lanes.ports.on_port_up()
                        lanes.retry()
                elif lanes is not None:
                    lanes.ports.on_port_down(domain)
        if domain.alive and not self._looking_again:
            self._looking_again = True
            self._core.control.start(self._look_again)

    async def _look_again(self) -> None:
        """Choose ports again, a little later: that reads many files, and several ports tend to change at once."""
        await asyncio.sleep(_SETTLING_S)
        self._looking_again = False
        nic_ports = self._core.nic_ports
        ports = await self._core.control.run_in_thread(nic_ports.choose_again)
        nic_ports.use(ports)
