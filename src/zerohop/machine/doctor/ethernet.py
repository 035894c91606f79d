"""Reads the fastest speed that a network interface supports: ``ethtool`` prints it as supported link modes.

sysfs has only the present speed of the link. This is the one fact of the doctor that takes a system call on a socket;
it needs no privilege. Not verified on hardware with an RDMA NIC.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# linux/sockios.h, linux/ethtool.h
_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_HEADER = 48  # bytes of struct ethtool_link_settings before its bit masks
_WORDS_AT = 15  # link_mode_masks_nwords, signed; the first call returns minus the number that the kernel wants

# Gb/s -> bits of enum ethtool_link_mode_bit_indices, first and last of each run.
_MODES: dict[float, tuple[tuple[int, int], ...]] = {
    1: ((4, 5), (17, 17), (41, 41)),
    2.5: ((15, 15), (47, 47)),
    5: ((48, 48),),
    10: ((12, 12), (18, 20), (42, 46)),
    20: ((21, 22),),
    25: ((31, 33),),
    40: ((23, 26),),
    50: ((34, 35), (40, 40), (52, 56)),
    56: ((27, 30),),
    100: ((36, 39), (57, 61), (75, 79)),
    200: ((62, 66), (80, 84)),
    400: ((69, 73), (85, 89)),
    800: ((93, 98),),
}


def fastest(interface: str, ask: Callable[[str, bytearray], None] | None = None) -> float | None:
    """Return the fastest speed that `interface` supports, in gigabits a second; None if its driver lists no mode.

    Args:
        interface: name of the interface.
        ask: passes the request to the kernel, which answers in the same buffer; None: the ioctl.
    """
    ask = ask or _ioctl
    request = bytearray(_HEADER)
    struct.pack_into("I", request, 0, _GET_LINK_SETTINGS)
    try:
        ask(interface, request)
        words = -struct.unpack_from("b", request, _WORDS_AT)[0]
        if words <= 0:
            return None
        request = bytearray(_HEADER + 3 * 4 * words)  # supported, advertised, advertised by the other end
        struct.pack_into("I", request, 0, _GET_LINK_SETTINGS)
        struct.pack_into("b", request, _WORDS_AT, words)
        ask(interface, request)
    except OSError:
        return None
    supported = int.from_bytes(request[_HEADER : _HEADER + 4 * words], "little")
    return max((speed for speed, runs in _MODES.items() if _any_of(supported, runs)), default=None)


def _any_of(supported: int, runs: tuple[tuple[int, int], ...]) -> bool:
    return any(supported >> bit & 1 for first, last in runs for bit in range(first, last + 1))


def _ioctl(interface: str, request: bytearray) -> None:
    buffer = (ctypes.c_char * len(request)).from_buffer(request)
    # struct ifreq: the name, and a pointer to the request.
    question = struct.pack("16sP16x", interface.encode()[:15], ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, question)
