"""Opens paths that stay beneath a folder, by the kernel's own check (openat2), which no link and no rename escapes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from zerohop._native import open_beneath as native_open_beneath
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from zerohop._native import HeldDescriptor


def open_beneath(folder: int, path: str, flags: int, mode: int = 0o666) -> HeldDescriptor:
    """Return a descriptor of a file that lies beneath a folder, given by its descriptor.

    Raises:
        OSError: the system refused; EXDEV: the path leaves the folder.
        Unsupported: the system has no openat2, or a sandbox refuses it.
        ValueError: the path has a null character.
    """
    if "\0" in path:
        raise ValueError("a path has no null character")
    try:
        return native_open_beneath(folder, path.lstrip("/") or ".", flags, mode)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise refused() from None
        raise OSError(error.errno, error.strerror, path) from None


def refused() -> Unsupported:
    """Return the error for a system that has no openat2, or a sandbox that refuses it."""
    return Unsupported(
        "the system has no openat2, which keeps paths within the store, or a sandbox refuses it",
        fix="use Linux 5.6 or later; in a container, a seccomp profile that allows openat2",
        operation="open",
    )


def parent_of(folder: int, path: str) -> tuple[HeldDescriptor, str]:
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
        open_beneath(root, "", os.O_PATH).close()
    except PermissionError:  # of the call itself: the folder is open already
        raise refused() from None
