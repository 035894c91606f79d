"""Makes the stream sockets of the control plane, and names the system's refusal when a sandbox allows none."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.base.sandbox import Socket, naming
from zerohop.core.control import address

if TYPE_CHECKING:
    from pathlib import Path

_BACKLOG: Final = 1024


def new(family: int, kind: int, protocol: int = 0) -> Socket:
    """Return a non-blocking socket.

    Raises:
        Unsupported: the system refuses sockets of this family to this process.
        OSError: this process is out of descriptors, or the like.
    """
    with naming("socket", ""):
        sock = Socket(family, kind, protocol)
    try:
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # by it users ask whether they are connected, and to whom
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_in(sock: Socket, directory: Path) -> None:
    """Listen at a Unix socket in a directory; raise what ``listen`` raises."""
    listen(sock, str(directory / address.SOCKET_NAME))


def listen(sock: Socket, where: Any) -> None:
    """Bind a socket and listen at it.

    Raises:
        Unsupported: the system refuses the calls to this process.
        OSError: the address cannot be used.
    """
    sock.bind(where)
    sock.listen(_BACKLOG)
