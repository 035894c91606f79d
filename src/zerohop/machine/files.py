"""Small readers of `/proc` and `/sys` files: a missing or unreadable file is an answer, not an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


# As much as sysfs gives at once.
_CHUNK: Final = 4096


def text(path: Path | str) -> str | None:
    """Returns the stripped text of `path`, or None when it cannot be read (sysfs answers some reads with EINVAL)."""
    # Not through a file object, which takes seven system calls: a table of GIDs is hundreds of files.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = b""
        while chunk := os.read(descriptor, _CHUNK):
            content += chunk
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content.decode("utf-8", errors="replace").strip()


def number(path: Path | str) -> int | None:
    """Returns the integer in `path` (decimal or 0x…), or None when there is none."""
    content = text(path)
    if content is None:
        return None
    try:
        return int(content, 0)
    except ValueError:
        return None


def link_name(path: Path) -> str | None:
    """Returns the last part of what the symbolic link `path` points to, or None when it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def entries(folder: Path) -> list[Path]:
    """Returns the entries of `folder` sorted by name; empty when there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def fields(path: Path, separator: str = ":") -> dict[str, str]:
    """Returns the `key<separator>value` lines of `path`; the first of several equal keys wins."""
    found: dict[str, str] = {}
    for line in (text(path) or "").splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), value.strip())
    return found
