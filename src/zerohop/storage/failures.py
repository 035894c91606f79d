"""Makes the errors of files, most of them from numbers of the system's, with a fix where there is a usual one."""

from __future__ import annotations

import errno
import os
from typing import Final

from zerohop.errors import EndOfFile, PeerLost, StorageError, ZerohopError, from_os, out_of_descriptors
from zerohop.shown import shown

# The fix where a server was lost.
REOPEN: Final = "open_store() again, once the server is there"
_FIXES: Final = {
    errno.ENOENT: "check the path, which counts from the folder of the store",
    errno.EACCES: "check owner and mode of the file and of the folders above it",
    errno.EPERM: "check owner, mode and attributes of the file; in a container, whether its sandbox allows the call",
    errno.EXDEV: "name a file beneath the folder of the store; a link may not lead out of it",
    errno.ELOOP: "name a file beneath the folder of the store; links into /proc are refused, and so are endless ones",
    errno.ENOSPC: "free space on the file system, or write less",
    errno.EDQUOT: "free space of this user's quota, or write less",
    errno.EFBIG: "write less, or raise the limit: ulimit -f unlimited",
    errno.EROFS: "mount the file system for writing",
    errno.EBADF: 'open the file for this: mode "r" reads, "w" and "x" write, "r+" does both',
    errno.EISDIR: "name a file, not a folder",
    errno.EFAULT: "keep the memory as long as it is used, and a file that it maps as long as it was",
}
# Words for numbers whose own words in the system tell too little.
_WORDS: Final = {
    errno.EXDEV: "the path leads out of the store",
    errno.EFAULT: "memory gone: bytes of the memory are not there any more",
}
# The fixes of opening a file, which are of no use for folders.
_OF_OPENING: Final = {errno.EEXIST: 'open it with mode "r+" or "w", or remove it first'}
# Characters of a path that an error repeats whole.
_LONGEST_PATH: Final = 512
_ON_NAMES: Final = ("unlink", "mkdir", "rmdir", "rename")


def of_errno(
    number: int, operation: str, path: str, *, bytes_done: int = 0, said: str = "", fix: str = ""
) -> StorageError:
    """Return the error for a number of the system's."""
    text = said or words_of(number)
    return StorageError(
        f"{text}: {shown_path(path)}" if path else text,
        errno=number,
        filename=path,
        fix=fix or _fix_of(number, operation),
        operation=operation,
        bytes_done=bytes_done,
    )


def words_of(number: int) -> str:
    """Return the words for a number of the system's."""
    return _WORDS.get(number) or os.strerror(number)


def shown_path(path: str) -> str:
    """Return a path as errors show it: cut short if no person would read it, because it is something else."""
    return repr(path) if len(path) <= _LONGEST_PATH else shown(path)


def file_ends(path: str, operation: str, bytes_done: int) -> EndOfFile:
    """Return the error for a file that ends before a range of it does."""
    return EndOfFile(
        f"the file ends before the range does: {path!r}",
        filename=path,
        fix="compare offset and length with file.size; or pass short=True, and look at the result",
        operation=operation,
        bytes_done=bytes_done,
    )


def server_closed(operation: str = "", bytes_done: int = 0, peer: str = "") -> PeerLost:
    """Return the error of what a server has ended because it was closed."""
    return PeerLost(
        "the server was closed",
        fix="start the server again, and open_store() again",
        peer=peer,
        operation=operation,
        bytes_done=bytes_done,
    )


def _fix_of(number: int, operation: str) -> str:
    if number == errno.EINVAL and operation == "readlink":
        return "name a symbolic link; stat() describes files and folders"
    if number == errno.EISDIR and operation == "unlink":
        return "remove a folder with rmdir()"
    if number == errno.EINVAL and operation in _ON_NAMES:
        return "name a file or folder beneath the folder of the store"
    if operation == "open_store" and number in (errno.ENOENT, errno.ENOTDIR):
        return 'name a folder that is there, or the URL of a server, "zerohop://HOST:PORT"'
    if operation == "serve" and number in (errno.ENOENT, errno.ENOTDIR):
        return "name a folder that is there"
    if operation == "open" and number in _OF_OPENING:
        return _OF_OPENING[number]
    return _FIXES.get(number, "")


def of_os(error: OSError, operation: str, path: str) -> ZerohopError:
    """Return the library's error for one that a call of the system has raised."""
    if isinstance(error, ZerohopError):
        return error
    if out_of_descriptors(error):
        return from_os(error, operation=operation)
    return of_errno(error.errno or errno.EIO, operation, path)
