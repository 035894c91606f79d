"""Has the kernel notice that the host at the other end of a TCP connection is gone."""

from __future__ import annotations

import socket
from typing import Final

# Probes in a row without an answer after which a host is lost.
_PROBES: Final = 3
# Seconds that kernels allow between two probes.
_LONGEST_PAUSE_S: Final = 32767


def begin(sock: socket.socket, seconds: float) -> None:
    """Have the kernel end a connection when the other host has not answered for about that long.

    A stopped process does not count, because its kernel answers for it. Without this, a host that has lost its power
    would go unnoticed while nothing is sent to it. Kernels count whole seconds, so it takes three at least.
    """
    # The kernel asks after each third of the time.
    pause = min(max(1, int(seconds / _PROBES)), _LONGEST_PAUSE_S)
    options = {
        socket.TCP_KEEPIDLE: pause,
        socket.TCP_KEEPINTVL: pause,
        socket.TCP_KEEPCNT: _PROBES - 1,
        # TCP_USER_TIMEOUT sets this limit for data that was sent and is not acknowledged, too.
        socket.TCP_USER_TIMEOUT: min(int(seconds * 1000), _LONGEST_PAUSE_S * 1000),
    }
    for option, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
