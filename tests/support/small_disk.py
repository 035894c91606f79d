"""Makes file systems with little room, which no folder of the machine shows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.patience import PATIENCE_S

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
    """Lend the root of a new file system in memory, of `nbytes`. It is mounted nowhere: a descriptor leads to it, by a
    path that other processes of the user may open, too, and it goes with that descriptor."""
    _check_root()
    with _mounted("tmpfs", {"size": str(nbytes), "nr_inodes": str(inodes)}) as root:
        yield root


@contextlib.contextmanager
def small_ext4(nbytes: int) -> Iterator[Path]:
    """Lend the root of a new ext4 of `nbytes` in all, whose files can be written past the page cache."""
    _check_root()
    # Machines without e2fsprogs have the tests over tmpfs.
    if shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
        pytest.skip("this machine lacks mkfs.ext4 or losetup")
    with tempfile.NamedTemporaryFile(prefix="zh-disk-") as image:
        image.truncate(nbytes)
        _ran("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-F", image.name)
        device = _ran("losetup", "--show", "-f", image.name).strip()
        try:
            with _mounted("ext4", {"source": device}) as root:
                yield root
        finally:
            _ran("losetup", "-d", device)


@contextlib.contextmanager
def _mounted(kind: str, options: dict[str, str]) -> Iterator[Path]:
    made = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        for key, value in options.items():
            _call(_FSCONFIG, made, _SET_STRING, key.encode(), value.encode(), 0)
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


def _check_root() -> None:
    # Mounting is root's, and tests of plain users run elsewhere.
    if os.geteuid() != 0:
        pytest.skip("only root makes file systems; a limit of files' sizes is what test_files.py tests for all")


def _ran(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    # A container's sandbox may refuse loop devices to root, too.
    if ran.returncode != 0:
        pytest.skip(f"this system makes no file system for the test: {ran.stderr}")
    return ran.stdout


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    # A container's sandbox, or a kernel before 5.2, may refuse these calls to root, too.
    if result < 0:
        error = ctypes.get_errno()
        pytest.skip(f"this system makes no file system for the test: {os.strerror(error)}")
    return result
