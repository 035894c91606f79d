"""Opens paths that stay beneath a folder, by the kernel's own check (openat2), which no link and no rename escapes."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any, Final

from zerohop.errors import Unsupported

# Number of openat2 on every architecture, and of its flags (linux/openat2.h).
_OPENAT2: Final = 437
_NO_MAGIC_LINKS, _BENEATH = 0x02, 0x08
# The kernel says "again" if a folder on the way was renamed meanwhile.
_TRIES: Final = 100


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _syscall() -> Any:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


def open_beneath(folder: int, path: str, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a file that lies beneath a folder, given by its descriptor.

    Raises:
        OSError: the system refused; EXDEV: the path leaves the folder.
        Unsupported: the system has no openat2, or a sandbox refuses it.
        ValueError: the path has a null character.
    """
    name = os.fsencode(path.lstrip("/") or ".")
    if b"\0" in name:
        raise ValueError("a path has no null character")
    how = _How(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _BENEATH | _NO_MAGIC_LINKS)
    error = errno.EAGAIN
    for _ in range(_TRIES):
        fd = int(_syscall()(_OPENAT2, folder, ctypes.c_char_p(name), ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        error = ctypes.get_errno()
        if error not in (errno.EAGAIN, errno.EINTR):
            break
    if error == errno.ENOSYS:
        raise refused()
    raise OSError(error, os.strerror(error), path)


def refused() -> Unsupported:
    """Return the error for a system that has no openat2, or a sandbox that refuses it."""
    return Unsupported(
        "the system has no openat2, which keeps paths within the store, or a sandbox refuses it",
        fix="use Linux 5.6 or later; in a container, a seccomp profile that allows openat2",
        operation="open",
    )


def parent_of(folder: int, path: str) -> tuple[int, str]:
    """Return a descriptor of the folder that a path lies in, and the last name of the path.

    Raises:
        OSError: the system refused; EINVAL: the path has no last name, as ``".."``.
        Unsupported, ValueError: as ``open_beneath``.
    """
    above, _, name = path.strip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    if "\0" in name:
        raise ValueError("a path has no null character")
    return open_beneath(folder, above, os.O_PATH | os.O_DIRECTORY), name


def check_openat2(root: int) -> None:
    """Raise Unsupported where paths cannot be kept within the folder, whose descriptor is given."""
    try:
        os.close(open_beneath(root, "", os.O_PATH))
    except PermissionError:  # of the call itself: the folder is open already
        raise refused() from None
