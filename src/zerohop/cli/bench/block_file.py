"""Makes the file that the rows about files read: every block of it differs, and what it has can be told again."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.cli.console import human_bytes
from zerohop.machine.files import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from zerohop.cli.payload import Octets

_WORD: Final = 8
# Odd, so that no two words of a file are the same.
_STEP: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_WRITTEN_BYTES: Final = 16 << 20  # by one call
_IN_MEMORY: Final = ("tmpfs", "ramfs")


class NoFile(Exception):
    """Raised if there can be no such file; the text says why, and what to do."""


def content(offsets: NDArray[Any], nbytes: int) -> Octets:
    """Return the blocks of `nbytes` that a file has at these offsets, one after the other; all are multiples of 8."""
    words = (offsets.astype(np.uint64) // np.uint64(_WORD))[:, None] + np.arange(nbytes // _WORD, dtype=np.uint64)
    octets: Octets = (words * _STEP).reshape(-1).view(np.uint8)
    return octets


@contextmanager
def block_file(folder: str, nbytes: int, *, on_disk: bool) -> Iterator[Path]:
    """Make a file in a new folder below `folder`, none of it in the page cache; both are removed afterwards.

    Raises:
        NoFile: there is no such folder, no room in it, or it is in memory and `on_disk` wants a disk.
    """
    other = "name a folder on a disk with --folder" if on_disk else "let it have more: mount -o remount,size=2G"
    if not Path(folder).is_dir():
        raise NoFile(f"there is no folder {folder}: {other}")
    kind = file_system(folder)
    if on_disk and kind in _IN_MEMORY:
        raise NoFile(f"{folder} is in memory ({kind}): {other}")
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise NoFile(f"{folder} has room for {human_bytes(free)}, and {human_bytes(nbytes)} are needed: {other}")
    try:
        with tempfile.TemporaryDirectory(prefix="zerohop-bench-", dir=folder) as made:
            path = Path(made, "blocks")
            _write(path, nbytes)
            yield path
    except PermissionError as error:
        raise NoFile(f"{error}: {other}") from None


def _write(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        for at in range(0, nbytes, _WRITTEN_BYTES):
            file.write(content(np.array([at]), min(_WRITTEN_BYTES, nbytes - at)).data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def file_system(folder: str) -> str:
    """Return the kind of file system that a folder is in, such as "ext4"; "?" if the system does not tell."""
    device = Path(folder).stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in (text("/proc/self/mountinfo") or "").splitlines():
        words = line.split()
        if words[2] == number and "-" in words:
            return words[words.index("-") + 1]
    return "?"
