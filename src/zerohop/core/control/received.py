"""Closes descriptors that a peer has sent, without waiting for as long as the peer likes.

Closing the last descriptor of a socket that lingers, or of a file whose file system does not answer, may take for ever.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final

from zerohop.core.base import sandbox, threads
from zerohop.core.control.descriptors import received, room_for
from zerohop.errors import Unsupported, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Threads of this process that close descriptors at the same time; all may have to wait.
_MOST_THREADS: Final = 4
# For as many descriptors as the kernel sends with one message (SCM_MAX_FD): it closes what has no room, and may wait.
FD_SPACE: Final = room_for(253)
_PIECE_BYTES: Final = 64 << 10
_DO_NOT_LINGER: Final = struct.pack("ii", 0, 0)


def close_received(fds: list[int]) -> None:
    """Close descriptors that a peer has sent, and empty the list; never wait."""
    slow = [fd for fd in fds if not is_memory_or_pipe(fd)]
    at_once = [fd for fd in fds if fd not in slow]
    fds.clear()
    for fd in at_once:
        sandbox.close(fd)
    if slow:
        for fd in slow:
            _stop_lingering(fd)
        _closer().close(slow)


def is_memory_or_pipe(fd: int) -> bool:
    """Tell whether a descriptor is of shared memory or of a pipe, with which no call has to wait for others."""
    for question in (fcntl.F_GET_SEALS, fcntl.F_GETPIPE_SZ):  # the system refuses it for all else, and asks nobody
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, question)
            return True
    return False


def drop_unread(sock: socket.socket) -> None:
    """Close the descriptors that wait in a Unix socket, and that nobody will read. Closing it would wait for them."""
    try:
        sock.shutdown(socket.SHUT_RD)  # nothing comes any more
        while True:
            data, ancillary, _, _ = sock.recvmsg(_PIECE_BYTES, FD_SPACE, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
            close_received(received(ancillary))
            if not data:
                return
    except (OSError, Unsupported):  # nothing is unread, or a sandbox refuses to look
        pass


def turn_away_all(listening: socket.socket) -> None:
    """Close the connections that wait for a listener, as far as there are descriptors to accept them."""
    try:
        while True:
            turn_away(listening.accept()[0])
    except OSError:  # no other peer waits, or another thread took the descriptor
        pass


def turn_away(sock: socket.socket) -> None:
    """Close the socket of a peer that is not let in."""
    if sock.family == socket.AF_UNIX:
        drop_unread(sock)
    sock.close()


def _stop_lingering(fd: int) -> None:
    try:
        sock = socket.socket(fileno=fd)
    except OSError:  # it is no socket
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DO_NOT_LINGER)
    sock.detach()


class _Closer:
    """Closes descriptors of one process on a few threads, which end when there is nothing left to close."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._left: collections.deque[int] = collections.deque()
        self._threads = 0

    def close(self, fds: Iterable[int]) -> None:
        with self._lock:
            self._left.extend(fds)
            if self._threads == _MOST_THREADS:
                return
            self._threads += 1
        try:
            threads.Thread(self._run, name="zerohop-drop").begin()
        except ZerohopError:  # there is no room for a thread; the next call's closes these, too
            with self._lock:
                self._threads -= 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._threads -= 1
                    return
                fd = self._left.popleft()
            sandbox.close(fd)


_closers: list[_Closer] = []


def _closer() -> _Closer:
    """Return the one of this process: a forked child has none of the threads."""
    if not _closers or _closers[-1].process != os.getpid():
        _closers[:] = [_Closer()]
    return _closers[0]
