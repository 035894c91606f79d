"""Holds peers that have connected and are not yet as far as they must get soon. On the control thread.

Anybody can connect to a TCP port and say nothing. The room of a listener has few places, so such peers must give way to
others: when it is full, the source that holds the most places loses one, and there the peer that has been silent for
longest. Peers that have introduced themselves and open no lane give way to others of their source alone. After many
have been sent away who did not even introduce themselves, their like gets no time to do so: a new one has its Hello in
the socket already, and a crowd that comes again and again would else keep the room full.

All times here count only while this process runs: a peer may have stood still together with this machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from zerohop.core.base.deadlines import STEP_S, wait_while_running, wait_with_timeout
from zerohop.core.control.throttle import source_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from zerohop.core.runtime.control_thread import ControlThread

# Number of peers that may be in their handshake or before their Setup; more of them wait in the kernel's backlog.
PLACES: Final = 64
# Seconds that a peer has to begin to speak.
HELLO_S: Final = 2.0
# Seconds for which every peer may stay, however many others wait: many peers of one busy host may come at once.
GRACE_S: Final = 0.5
# Seconds after the handshake that every peer has to open its lane, however many others of its source do.
LANE_S: Final = 2.0


class Guest:
    """Represents a peer that is in its handshake, or has still to send its Setup, or to open its lane."""

    def __init__(self, source: str) -> None:
        self.source = source
        # Seconds that it has had a place.
        self.age = 0.0
        # Whether it has still to begin with what it is to say.
        self.silent = True
        # Whether its Hello has come as a whole.
        self.introduced = False
        self.task: asyncio.Task[None] | None = None

    async def speaks(self, sock: socket.socket) -> None:
        """Wait for the peer's first bytes, and leave them in the socket; raise TimeoutError if none come."""
        loop = asyncio.get_running_loop()
        spoken = asyncio.Event()
        loop.add_reader(sock, spoken.set)
        try:
            await wait_while_running(spoken.wait(), HELLO_S)
        finally:
            loop.remove_reader(sock)
        self.silent = False


class WaitingRoom:
    """Gives places to peers until they have introduced themselves."""

    def __init__(self, control: ControlThread, fault: str) -> None:
        """Prepare; ``fault`` says in the log what the peers do that must go."""
        self._control = control
        self._fault = fault
        # In the order in which they came.
        self._guests: dict[Guest, None] = {}
        self._left = asyncio.Event()
        # Number of guests that were sent away before they had introduced themselves, since the room was last empty.
        self._wasted = 0
        # Whether the guests' ages are counted, as long as there are any.
        self._counting = False

    async def vacancy(self) -> None:
        """Wait until a place is free. Somebody leaves for it after a moment, if need be."""
        # Tasks that were just made begin now: one that is cancelled before would leave its socket open.
        await asyncio.sleep(0)
        while len(self._guests) >= PLACES:
            [(crowd, _)] = Counter(guest.source for guest in self._guests).most_common(1)
            guest = self._first_to_go(crowd)
            hasty = self._wasted >= PLACES and not guest.introduced
            if (hasty or guest.age >= GRACE_S) and self._dismiss(guest):
                return
            self._left.clear()
            try:
                await wait_with_timeout(self._left.wait(), STEP_S)
            except TimeoutError:
                pass

    def thin_out(self, host: str) -> None:
        """Dismiss the first to go of a host's source, if that holds PLACES places, and LANE_S seconds have passed."""
        source = source_of(host)
        if sum(guest.source == source for guest in self._guests) >= PLACES:
            guest = self._first_to_go(source)
            if guest.age >= LANE_S:
                self._dismiss(guest)

    def seat(self, host: str, receive: Callable[[Guest], asyncio.Task[None]]) -> Guest:
        """Give a place to a peer from a host, for as long as the task that ``receive`` begins."""
        guest = Guest(source_of(host))
        self._guests[guest] = None
        if not self._counting:
            self._counting = True
            self._control.start(self._count)
        guest.task = receive(guest)
        guest.task.add_done_callback(lambda _: self._leave(guest))
        return guest

    async def _count(self) -> None:
        """Add to the guests' ages until all have left. One sleep that takes longer than asked for counts once."""
        try:
            while there := list(self._guests):
                await asyncio.sleep(STEP_S)
                for guest in there:
                    guest.age += STEP_S
        finally:
            self._counting = False
            self._wasted = 0

    def _dismiss(self, guest: Guest) -> bool:
        """Have a peer go; return False if its task has not begun."""
        if guest.task is None:
            return False
        guest.task.cancel()
        del self._guests[guest]
        self._wasted += not guest.introduced
        text = f"too many peers connect and {self._fault}; disconnected one at %s"
        self._control.warn_once(guest.source, self._fault, text, guest.source)
        return True

    def _leave(self, guest: Guest) -> None:
        self._guests.pop(guest, None)
        self._left.set()

    def _first_to_go(self, crowd: str) -> Guest:
        # min() takes the first of equals, which came first. One that has just come had no time to speak yet.
        of_crowd = (guest for guest in self._guests if guest.source == crowd)
        return min(of_crowd, key=lambda guest: (guest.introduced, not guest.silent or guest.age < GRACE_S))
