"""Forbids a system call to this thread, as a container's seccomp profile does."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Final

_PR_SET_NO_NEW_PRIVS = 38
_SET_FILTER, _ALL_THREADS = 1, 1
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Number of each call on x86_64 and on aarch64; 0: that machine does not have it. Where libraries use one of several
# calls for the same, these are refused together. munmap and mprotect are not here: without them the C library aborts,
# or says that there is no memory.
NUMBERS: Final = {
    "accept4": [(288, 242)],
    "bind": [(49, 200)],
    "clone": [(56, 220), (435, 435)],
    "close": [(3, 57)],
    "connect": [(42, 203)],
    "dup": [(32, 23)],
    "epoll_create1": [(291, 20)],
    "epoll_ctl": [(233, 21)],
    "epoll_wait": [(232, 0), (281, 22), (441, 441)],
    "eventfd": [(290, 19)],
    "fcntl": [(72, 25)],
    "fstat": [(5, 80), (262, 79), (4, 0)],
    "ftruncate": [(77, 46)],
    "getdents64": [(217, 61)],
    "getpeername": [(52, 205)],
    "getsockname": [(51, 204)],
    "getsockopt": [(55, 209)],
    "getrandom": [(318, 278)],
    "ioctl": [(16, 29)],
    "listen": [(50, 201)],
    "lseek": [(8, 62)],
    "madvise": [(28, 233)],
    "memfd_create": [(319, 279)],
    "mmap": [(9, 222)],
    "openat": [(257, 56)],
    "pidfd_open": [(434, 434)],
    "pipe2": [(293, 59)],
    "poll": [(7, 0), (271, 73)],
    "recvfrom": [(45, 207)],
    "recvmsg": [(47, 212)],
    "sendmsg": [(46, 211)],
    "sendto": [(44, 206)],
    "setsockopt": [(54, 208)],
    "shutdown": [(48, 210)],
    "socket": [(41, 198)],
    "socketpair": [(53, 199)],
    "unlink": [(87, 0), (263, 35)],
    "write": [(1, 64)],
}
# Calls that files alone need.
OF_FILES: Final = {"io_uring_enter": [(426, 426)], "io_uring_setup": [(425, 425)], "openat2": [(437, 437)]}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def forbid(call: str, error: int = errno.EPERM, *, everywhere: bool = False) -> None:
    """Let the call fail with this error, for good: for this thread and those that it starts, or for all threads."""
    column, seccomp = {"x86_64": (0, 317), "aarch64": (1, 277)}[platform.machine()]
    steps = [(_LOAD, 0, 0, 0)]
    for numbers in {**NUMBERS, **OF_FILES}[call]:
        if numbers[column]:
            steps += [(_JUMP_IF_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERRNO | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(
        seccomp, _SET_FILTER, _ALL_THREADS if everywhere else 0, ctypes.byref(program)
    ):
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")
