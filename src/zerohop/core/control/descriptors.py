"""Copies and closes file descriptors, and packs those that go beside a message over a Unix socket."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING

from zerohop.core.base import sandbox, threads
from zerohop.errors import Unsupported, ZerohopError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def room_for(count: int) -> int:
    """Return the bytes of ancillary data that hold so many descriptors."""
    return socket.CMSG_LEN(count * array.array("i").itemsize)


def rights_to(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """Return the ancillary data that hands descriptors to a peer."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in received ancillary data, which the caller owns."""
    found: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
            found += fds
    return found


def copies_of(fds: Sequence[int]) -> list[int]:
    """Return a copy of each descriptor; at the limit of descriptors raise OSError, and leave no copy open."""
    copies: list[int] = []
    try:
        for fd in fds:
            with sandbox.naming("dup", ""):
                copies.append(os.dup(fd))
    except (OSError, Unsupported):
        close_all(copies)
        raise
    return copies


def close_received(fds: list[int]) -> None:
    """Close descriptors that a peer has sent, and empty the list; never wait.

    Closing the last descriptor of a socket that lingers, or of a file whose file system does not answer, takes as long
    as the peer likes. A thread of its own does that.
    """
    slow = [fd for fd in fds if not is_memory_or_pipe(fd)]
    at_once = [fd for fd in fds if fd not in slow]
    fds.clear()
    close_all(at_once)
    if slow:
        try:
            threads.Thread(close_all, slow, name="zerohop-drop").begin()
        except ZerohopError:  # there is no room for a thread
            close_all(slow)


def is_memory_or_pipe(fd: int) -> bool:
    """Tell whether a descriptor is of shared memory or of a pipe, with which no call has to wait for others."""
    for question in (fcntl.F_GET_SEALS, fcntl.F_GETPIPE_SZ):  # the system refuses it for all else, and asks nobody
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, question)
            return True
    return False


def close_all(fds: list[int]) -> None:
    """Close each descriptor, and empty the list."""
    for fd in fds:
        sandbox.close(fd)
    fds.clear()
