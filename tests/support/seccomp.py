"""Forbids a system call to this thread, as a container's seccomp profile does."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Final

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBERS: Final = {
    "x86_64": {
        "mmap": 9,
        "socket": 41,
        "connect": 42,
        "sendto": 44,
        "recvfrom": 45,
        "bind": 49,
        "listen": 50,
        "getsockname": 51,
        "socketpair": 53,
        "setsockopt": 54,
        "getsockopt": 55,
        "epoll_wait": 232,
        "epoll_ctl": 233,
        "eventfd": 290,
        "epoll_create1": 291,
        "pipe2": 293,
        "memfd_create": 319,
    },
    "aarch64": {
        "eventfd": 19,
        "epoll_create1": 20,
        "epoll_ctl": 21,
        "epoll_wait": 22,
        "pipe2": 59,
        "socket": 198,
        "socketpair": 199,
        "bind": 200,
        "listen": 201,
        "connect": 203,
        "getsockname": 204,
        "sendto": 206,
        "recvfrom": 207,
        "setsockopt": 208,
        "getsockopt": 209,
        "mmap": 222,
        "memfd_create": 279,
    },
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def forbid(call: str) -> None:
    """Let the call fail with EPERM; for this thread and those that it starts, and for good."""
    steps = [
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _NUMBERS[platform.machine()][call]),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")
