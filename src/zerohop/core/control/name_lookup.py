"""Looks up the addresses of host names on threads, because a name server may take long. On the control thread."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from zerohop.core.control.address import Address
    from zerohop.core.runtime.control_thread import ControlThread

# Lookups that go on at once. One that takes more than so many seconds makes room for another, so that names for which
# no name server answers hold up others no longer. That bounds the threads, too, because each name server gives up.
_MOST_AT_ONCE: Final = 16
_LONG_S: Final = 1.0

Found = list[tuple[Any, ...]]


class _Lookup:
    """Holds the lookup of one name, and how many wait for it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.waiting = 0
        self.takes_room = False
        self.found: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        # asyncio would warn of an exception that nobody fetches.
        self.found.add_done_callback(lambda found: found.cancelled() or found.exception())
        self.task: asyncio.Task[None] | None = None


class NameLookup:
    """Looks up names for one Context, each once at a time.

    A thread that asks a name server cannot be ended. So a lookup that has begun goes on when nobody waits for it any
    more, and serves those who come later.
    """

    def __init__(self, control: ControlThread) -> None:
        self._control = control
        self._lookups: dict[str, _Lookup] = {}
        # Those that have not begun, the one that was asked for last at the end; and the number of those that take room.
        self._queue: list[_Lookup] = []
        self._taken = 0
        self._newest_is_next = True

    async def find(self, where: Address) -> Found:
        """Return the result of ``socket.getaddrinfo`` for stream sockets; raise OSError as that does."""
        try:
            return _ask(where.host, where.port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        lookup = self._lookups.get(where.host)
        if lookup is None:
            lookup = self._lookups[where.host] = _Lookup(where.host)
            self._queue.append(lookup)
        elif lookup in self._queue:
            self._queue.remove(lookup)
            self._queue.append(lookup)
        lookup.waiting += 1
        try:
            self._go_on()
            found = await asyncio.shield(lookup.found)
        finally:
            lookup.waiting -= 1
        return [(*kind, (address, where.port, *rest)) for *kind, (address, _, *rest) in found]

    def _go_on(self) -> None:
        """Begin the next lookups, as long as there is room; drop those for which nobody waits any more.

        The newest and the oldest take turns: many names hold up neither one that somebody asks for later, nor one that
        somebody has asked for before.
        """
        while self._queue and self._taken < _MOST_AT_ONCE:
            lookup = self._queue.pop(-1 if self._newest_is_next else 0)
            if lookup.waiting:
                self._newest_is_next = not self._newest_is_next
                self._taken += 1
                lookup.takes_room = True
                lookup.task = asyncio.get_running_loop().create_task(self._look_up(lookup))
            else:
                del self._lookups[lookup.host]

    async def _look_up(self, lookup: _Lookup) -> None:
        timer = asyncio.get_running_loop().call_later(_LONG_S, self._make_room, lookup)
        try:
            lookup.found.set_result(await self._control.run_in_thread(_ask, lookup.host, None))
        except asyncio.CancelledError:  # the control thread ends, and nothing begins any more
            self._queue.clear()
            raise
        except Exception as error:  # noqa: BLE001 - those who wait for it must get it
            lookup.found.set_exception(error)
        finally:
            timer.cancel()
            del self._lookups[lookup.host]
            self._make_room(lookup)

    def _make_room(self, lookup: _Lookup) -> None:
        if lookup.takes_room:
            lookup.takes_room = False
            self._taken -= 1
            self._go_on()


def _ask(host: str, port: int | None, flags: int = 0) -> Found:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
