"""Makes a file system in memory with little room, which no folder of the machine shows."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers of system calls, the same on every processor, and of what they are asked for.
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
_CLOSE_ON_EXEC: Final = 1
_SET_STRING: Final = 1
_CREATE: Final = 6


@contextlib.contextmanager
def small_disk(nbytes: int, inodes: int = 1000) -> Iterator[Path]:
    """Lend the root of a new file system of `nbytes`. It is mounted nowhere: a descriptor leads to it, by a path that
    other processes of the user may open, too, and it goes with that descriptor."""
    if os.geteuid() != 0:
        pytest.skip("only root makes file systems; a limit of files' sizes is what test_files.py tests for all")
    made = _call(_FSOPEN, b"tmpfs", _CLOSE_ON_EXEC)
    try:
        for key, value in ((b"size", nbytes), (b"nr_inodes", inodes)):
            _call(_FSCONFIG, made, _SET_STRING, key, str(value).encode(), 0)
        _call(_FSCONFIG, made, _CREATE, None, None, 0)
        root = _call(_FSMOUNT, made, _CLOSE_ON_EXEC, 0)
    finally:
        os.close(made)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{root}")
    finally:
        os.close(root)


def free_bytes(folder: Path) -> int:
    """Return how many bytes the file system of a folder has room for."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        pytest.skip(f"this system makes no file system for the test: {os.strerror(error)}")
    return result
