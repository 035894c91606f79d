"""Looks up the addresses of host names on threads, because a name server may take long. On the control thread."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerohop.core.control.address import Address
    from zerohop.core.runtime.control_thread import ControlThread

Found = list[tuple[Any, ...]]


class NameLookup:
    """Looks up names for one Context: each name once at a time, and only so many at the same time.

    A thread that asks a name server cannot be ended, so a lookup goes on when nobody waits for it any more, and serves
    those who come later.
    """

    def __init__(self, control: ControlThread, most: int) -> None:
        """Prepare; ``most`` names are looked up at the same time, and the others wait."""
        self._control = control
        self._room = asyncio.Semaphore(most)
        self._under_way: dict[tuple[str, int], asyncio.Task[Found]] = {}

    async def find(self, where: Address) -> Found:
        """Return what ``socket.getaddrinfo`` does for stream sockets; raise OSError as it does."""
        name = where.host, where.port
        resolve = functools.partial(socket.getaddrinfo, *name, type=socket.SOCK_STREAM)
        try:
            return resolve(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.get_running_loop().create_task(self._look_up(resolve))
            task.add_done_callback(functools.partial(self._ended, name))
        return await asyncio.shield(task)

    async def _look_up(self, resolve: functools.partial[Found]) -> Found:
        async with self._room:
            return await self._control.run_in_thread(resolve)

    def _ended(self, name: tuple[str, int], task: asyncio.Task[Found]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # asyncio would warn of an exception that nobody fetched
