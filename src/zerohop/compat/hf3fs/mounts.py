"""Says which folder, and which server, a mount point stands for."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from zerohop.core.face import parse_url
from zerohop.errors import StorageError
from zerohop.shown import shown

# What C's structures have room for, without the zero at the end.
LONGEST: Final = 255
_LONGEST_URL: Final = 1024

_SCHEME: Final = "zerohop://"

_mounts: dict[str, str] = {}
# The URLs of the mount points whose files a server reads and writes.
_servers: dict[str, str] = {}


def mount(path: str | os.PathLike[str], where: str | os.PathLike[str]) -> None:
    """Make a mount point stand for a folder, or for what a server has.

    Nothing is mounted in the system: names of this module take the path for the folder, and ``os.open`` does not. Pass
    it ``local_path(name)``, or give the mount point the folder's own path. Rings and memory keep what they were made
    with.

    Args:
        path: the mount point, such as ``"/mnt/3fs"``; for a folder there need be no such path. For a server it is a
            folder where ``os.open`` finds the server's files, such as the served folder itself, or that folder over
            NFS: a program for 3FS opens files by their paths, and the server then reads and writes them.
        where: the folder, or the URL of a ``zerohop.storage.Server``.

    Raises:
        TypeError: an argument is no path.
        ValueError: the mount point is empty, or longer than 3FS's structures allow; ``where`` is another kind of URL.
        StorageError: there is no such folder.
    """
    name, folder = _normal(_text("path", path)), _text("where", where, longest=_LONGEST_URL)
    if folder.startswith(_SCHEME):
        _existing(name, "give the mount point a folder in which os.open finds the files of the server")
        parse_url(folder)
        _mounts[name], _servers[name] = name, folder
        return
    if "://" in folder:
        raise ValueError(f"a server's URL begins with {_SCHEME}, and a folder's path has no scheme: {shown(folder)}")
    _mounts[name] = _existing(folder, 'name a folder that exists: mount(path, "/some/folder")')
    _servers.pop(name, None)


def unmount(path: str | os.PathLike[str]) -> None:
    """Forget a mount point. What was made with it goes on.

    Raises:
        ValueError: there is no such mount point.
    """
    name = _normal(_text("path", path))
    _servers.pop(name, None)
    if _mounts.pop(name, None) is None:
        there = ", ".join(sorted(_mounts)) or "nothing"
        raise ValueError(f"{shown(path)} is not mounted; mounted is: {there}")


def folder_of(mount_point: str | os.PathLike[str]) -> str:
    """Return the folder that a mount point stands for; a folder that is not mounted stands for itself.

    Raises:
        TypeError, ValueError: it is no path, or too long.
        StorageError: it is neither.
    """
    name = _text("a mount point", mount_point)
    folder = _mounts.get(_normal(name))
    if folder is not None:
        return folder
    return _existing(name, f'mount it: zerohop.compat.hf3fs.mount({name!r}, "/some/folder")')


def server_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the URL of the server that has what lies at a path, and the path there; two empty texts if none has."""
    name = _normal(_text("path", path))
    for point, url in _servers.items():
        # The system names a file by its real path, whatever links led to it.
        for folder in (point, str(Path(point).resolve())):
            if _longest(name, {folder: ""}) is not None:
                return url, os.path.relpath(name, folder)
    return "", ""


def local_path(path: str | os.PathLike[str]) -> str:
    """Return where a path really lies: beneath a mount point it is a path beneath its folder, else itself."""
    name = _text("path", path)
    point = _longest(_normal(name), _mounts)
    if point is None:
        return name
    return str(Path(_mounts[point], os.path.relpath(_normal(name), point)))


def extract_mount_point(path: str | os.PathLike[str]) -> str | None:
    """Return the mount point that a path lies beneath; None if there is none.

    It is the innermost mount point above it, by its path or by that of the folder that it stands for. Where nothing is
    mounted above, it is the folder that the path names, or else the folder that it is in, if that exists.
    """
    name = _normal(_text("path", path))
    points = {folder: point for point, folder in _mounts.items()} | {point: point for point in _mounts}
    found = _longest(name, points)
    if found is not None:
        return points[found]
    folder = name if Path(name).is_dir() else str(Path(name).parent)
    return folder if Path(folder).is_dir() else None


def _longest(path: str, above: dict[str, str]) -> str | None:
    found = [each for each in above if path == each or path.startswith(each.rstrip("/") + "/")]
    return max(found, key=len, default=None)


def _normal(path: str) -> str:
    # Not Path.resolve(): a mount point need not exist, and links beneath it are the system's to follow.
    return os.path.abspath(path)  # noqa: PTH100 - as above


def _text(name: str, path: object, *, longest: int = LONGEST) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name} is a path, as a string or a Path, not {type(path).__name__}")
    if not text or "\0" in text:
        raise ValueError(f"{name} is a path, not {shown(text)}")
    if len(os.fsencode(text)) > longest:
        raise ValueError(f"{name} has at most {longest} bytes, not {len(os.fsencode(text))}")
    return text


def _existing(folder: str, fix: str) -> str:
    if "://" not in folder and Path(folder).is_dir():
        return _normal(folder)
    number = errno.ENOTDIR if Path(folder).exists() else errno.ENOENT
    raise StorageError(
        f"{shown(folder)} is no mount point, and no folder",
        errno=number,
        filename=folder,
        fix=fix,
        operation="mount",
    )
