"""Makes the stream sockets of the control plane, and names the system's refusal when a sandbox allows none."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.base.sandbox import naming
from zerohop.core.control import address
from zerohop.errors import of_sandbox

if TYPE_CHECKING:
    from pathlib import Path

_BACKLOG: Final = 1024


def new(family: int, kind: int, protocol: int = 0, *, operation: str) -> socket.socket:
    """Return a non-blocking socket.

    Raises:
        Unsupported: the system refuses sockets of this family to this process.
        OSError: this process is out of descriptors, or the like.
    """
    with naming("socket", operation):
        sock = socket.socket(family, kind, protocol)
    try:
        with naming("getsockopt", operation):  # the socket's user asks by it whether a connection was made, and by whom
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def listen_in(sock: socket.socket, directory: Path) -> None:
    """Listen at a Unix socket in a directory; raise what ``listen`` raises."""
    listen(sock, str(directory / address.SOCKET_NAME))


def listen(sock: socket.socket, where: Any) -> None:
    """Bind a socket and listen at it.

    Raises:
        Unsupported: the system refuses the calls to this process.
        OSError: the address cannot be used.
    """
    try:
        sock.bind(where)
        sock.listen(_BACKLOG)
    except OSError as error:
        # Without permission for this address (EACCES) another one helps, so only the other two mean the call itself.
        refused = of_sandbox(error, "bind or listen", operation="listen") if error.errno != errno.EACCES else None
        raise refused or error from None
