"""Looks up and changes the names in a folder, given by its descriptor. No path leads out of it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from zerohop.errors import Unsupported
from zerohop.storage import failures
from zerohop.storage.beneath import open_beneath, parent_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _listdir(root: int, path: str) -> list[str]:
    with open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        return os.listdir(folder.fileno())  # noqa: PTH208 - a Path cannot name a folder by its descriptor


def _stat(root: int, path: str) -> os.stat_result:
    with open_beneath(root, path, os.O_PATH) as file:
        return os.stat(file.fileno())  # noqa: PTH116 - a Path cannot name a file by its descriptor


def _readlink(root: int, path: str) -> str:
    parent, name = parent_of(root, path)
    with parent:
        return os.readlink(name, dir_fd=parent.fileno())


def _utime(root: int, path: str, *times: int) -> None:
    with open_beneath(root, path, os.O_PATH) as file:
        # Such a descriptor needs no right to read the file, and the system takes it for this by its name alone.
        name = f"/proc/self/fd/{file.fileno()}"
        try:
            os.utime(name, ns=(times[0], times[1])) if times else os.utime(name)
        except FileNotFoundError:
            no_proc = "there is no /proc, by which times are set"
            raise Unsupported(no_proc, fix="mount /proc", operation="utime") from None


def _in_parent(do: Callable[..., None]) -> Callable[[int, str], None]:
    """Return a function that calls ``do`` with the last name of a path, and with the folder which that name is in."""

    def work(root: int, path: str) -> None:
        parent, name = parent_of(root, path)
        with parent:
            do(name, dir_fd=parent.fileno())

    return work


def _rename(root: int, old: str, new: str) -> None:
    def to_new(name: str, *, dir_fd: int) -> None:
        try:
            other, new_name = parent_of(root, new)
        except OSError as error:
            raise failures.of_os(error, "rename", new) from None
        try:
            with other:
                os.rename(name, new_name, src_dir_fd=dir_fd, dst_dir_fd=other.fileno())
        except OSError as error:
            too_long = error.errno == errno.ENAMETOOLONG and len(os.fsencode(new_name)) > len(os.fsencode(name))
            if error.errno in _OF_NEW or too_long:
                raise failures.of_os(error, "rename", new) from None
            raise

    _in_parent(to_new)(root, old)


# Errors of a rename that are about what has the new name.
_OF_NEW: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR)

# Each takes the folder's descriptor and one path or two, and ``utime`` the nanoseconds of both times, if any. They
# raise OSError, Unsupported, and ValueError for a path that has a null character.
CALLS: Final[dict[str, Callable[..., Any]]] = {
    "listdir": _listdir,
    "stat": _stat,
    "readlink": _readlink,
    "utime": _utime,
    "unlink": _in_parent(os.unlink),
    "mkdir": _in_parent(os.mkdir),
    "rmdir": _in_parent(os.rmdir),
    "rename": _rename,
}
# Those that change something.
CHANGING: Final = frozenset({"utime", "unlink", "mkdir", "rmdir", "rename"})
