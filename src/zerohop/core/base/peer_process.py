"""Watches the processes of lost peers until they exit: until then a peer may still write to memory that it has mapped.

A connection may end while the peer's copies go on: the peer was stopped, or this side closed the connection. The kernel
reports the end of a process only after it has taken back everything, including what the process's GPUs still did.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Linux has had this socket option since 6.5. An older kernel finds a process only by its number.
_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("3i")
_UNKNOWN: Final = -1
# The watched processes, by number: however many connections to one are lost, it takes one descriptor.
_watched: weakref.WeakValueDictionary[int, PeerProcess] = weakref.WeakValueDictionary()
# Objects that must outlive their closed Context, each with the peers that may still write to it.
_outliving: dict[object, tuple[list[PeerProcess], object]] = {}


class PeerProcess:
    """Observes the end of a lost peer's process."""

    __slots__ = ("__weakref__", "_pidfd")

    def __init__(self, pidfd: int) -> None:
        """Take over a pidfd; -1 stands for a process whose end cannot be observed."""
        self._pidfd = pidfd

    def has_exited(self) -> bool:
        """Tell whether the process has ended, and can write to nothing any more."""
        if self._pidfd == _UNKNOWN:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def watch(self, exited: Callable[[], None]) -> None:
        """Have this thread's event loop call ``exited`` when the process has ended."""
        if self._pidfd == _UNKNOWN:
            return
        # Imported here because `import zerohop` alone needs no asyncio.
        import asyncio

        loop = asyncio.get_running_loop()

        def readable() -> None:
            # The reader keeps this object, and so the watched descriptor, alive until it is removed here.
            loop.remove_reader(self._pidfd)
            exited()

        loop.add_reader(self._pidfd, readable)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # `_close` is a default argument, because this module's globals may be gone when the interpreter exits.
        # The constructor may have raised.
        if getattr(self, "_pidfd", -1) >= 0:
            _close(self._pidfd)


def keep_until_exit(processes: list[PeerProcess], keep: object) -> None:
    """Keep an object alive until all these processes have ended, although its Context is being closed."""
    _outliving[object()] = processes, keep


def release_kept() -> None:
    """Release the objects whose processes have all ended. Any thread may call this, now and then."""
    for key in list(_outliving):
        processes, _ = _outliving.get(key, ([], None))
        if all(process.has_exited() for process in processes):
            _outliving.pop(key, None)


def unknown_process() -> PeerProcess:
    """Return a process whose end cannot be observed."""
    return PeerProcess(_UNKNOWN)


def process_at(sock: socket.socket) -> PeerProcess | None:
    """Return the process at the other end of a Unix socket; None if it has ended already."""
    if sock.family != socket.AF_UNIX or sock.fileno() < 0:
        return unknown_process()
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid == os.getpid():
        # The peer is another Context of this process, and ends when this process ends.
        return unknown_process()
    # The number is 0 for a process of another PID namespace.
    known = _watched.get(pid) if pid else None
    if known is not None and not known.has_exited():
        # The number cannot have gone to another process since `known` was made. Had it gone to `known`, the process at
        # this socket would have ended before, and memory is kept for longer than need be.
        return known
    try:
        found = PeerProcess(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        try:
            found = PeerProcess(os.pidfd_open(pid) if pid > 0 else _UNKNOWN)
        except ProcessLookupError:
            return None
        except OSError:
            return unknown_process()
    if pid:
        _watched[pid] = found
    return found
