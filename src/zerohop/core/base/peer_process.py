"""Peers that are lost and may still write: their processes, watched until they are gone.

A connection may end while the peer's copies into memory that it has mapped go on, as when it was stopped, or when this
side closed the connection. The kernel tells of the end of a process after it has given all of it back, and with it what
its GPUs still did.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# As in Linux's headers; from 6.5 on. Before that a process is found by its number.
_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("3i")
_UNKNOWN: Final = -1
# What a Context that was closed had shared, and the peers that may still write to it.
_outliving: dict[object, tuple[list[Ghost], object]] = {}


class Ghost:
    """One such process."""

    __slots__ = ("_pidfd",)

    def __init__(self, pidfd: int) -> None:
        """The descriptor is its own from now on; -1 where nobody can tell when the process ends."""
        self._pidfd = pidfd

    def gone(self) -> bool:
        """Whether it has ended, and can touch nothing any more."""
        if self._pidfd == _UNKNOWN:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def watch(self, ended: Callable[[], None]) -> None:
        """Have ``ended`` called on this thread's event loop once it has."""
        if self._pidfd == _UNKNOWN:
            return
        # Not at the top: this module is read by whoever only imports.
        import asyncio

        loop = asyncio.get_running_loop()

        def readable() -> None:
            # Until then the loop keeps this object, and with it the descriptor that it looks at.
            loop.remove_reader(self._pidfd)
            ended()

        loop.add_reader(self._pidfd, readable)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter, when this module may have nothing any more.
        if self._pidfd >= 0:
            _close(self._pidfd)


def keep_from(ghosts: list[Ghost], keep: object) -> None:
    """``keep`` stays alive until they are gone: in the process, as its Context is closed."""
    _outliving[object()] = ghosts, keep


def let_go() -> None:
    """Of what they cannot touch any more. Any thread may call it, now and then: nobody is told of their end."""
    for key in list(_outliving):
        ghosts, _ = _outliving.get(key, ([], None))
        if all(ghost.gone() for ghost in ghosts):
            _outliving.pop(key, None)


def unknown() -> Ghost:
    """One of which nobody can tell when it is gone."""
    return Ghost(_UNKNOWN)


def ghost_of(sock: socket.socket) -> Ghost | None:
    """The process at the other end of a Unix socket; None when it has ended, and can touch nothing any more."""
    if sock.family != socket.AF_UNIX or sock.fileno() < 0:
        return Ghost(_UNKNOWN)
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid == os.getpid():
        # Another Context of this process: its end will be ours.
        return Ghost(_UNKNOWN)
    try:
        return Ghost(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        pass
    try:
        # 0: of another PID namespace.
        return Ghost(os.pidfd_open(pid) if pid > 0 else _UNKNOWN)
    except ProcessLookupError:
        return None
    except OSError:
        return Ghost(_UNKNOWN)
