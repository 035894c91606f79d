"""Reads small files of `/proc` and `/sys`: a missing or unreadable file is an answer, not an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


# The kernel gives at most this many bytes of a sysfs file at once.
_CHUNK: Final = 4096


def text(path: Path | str) -> str | None:
    """Return the stripped text of `path`, or None if it cannot be read (sysfs answers some reads with EINVAL)."""
    # A file object would take seven system calls, and a GID table is hundreds of files.
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
    """Return the integer in `path` (decimal or 0x…), or None if there is none."""
    content = text(path)
    if content is None:
        return None
    try:
        return int(content, 0)
    except ValueError:
        return None


def link_name(path: Path) -> str | None:
    """Return the last part of the path that the symbolic link `path` points to, or None if it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return the entries of `folder` sorted by name; empty if there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def fields(path: Path, separator: str = ":") -> dict[str, str]:
    """Return the `key<separator>value` lines of `path`; the first of several equal keys wins."""
    found: dict[str, str] = {}
    for line in (text(path) or "").splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), value.strip())
    return found
