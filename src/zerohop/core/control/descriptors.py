"""Copies and closes file descriptors, and packs those that go beside a message over a Unix socket."""

from __future__ import annotations

import array
import os
import socket
from typing import TYPE_CHECKING

from zerohop.core.base import sandbox
from zerohop.errors import Unsupported

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


def close_all(fds: list[int]) -> None:
    """Close each descriptor, and empty the list."""
    for fd in fds:
        sandbox.close(fd)
    fds.clear()
