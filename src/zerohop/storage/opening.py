"""Opens Files: by a path beneath a folder, or of a descriptor that is open already."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zerohop._native import OpenFile, duplicate, open_path
from zerohop.config.checks import check_flag, check_int
from zerohop.errors import out_of_descriptors
from zerohop.storage.alignment import USUAL, Alignment, alignment_of, is_tmpfs, no_gpudirect
from zerohop.storage.beneath import open_beneath, parent_of
from zerohop.storage.direct import check_file, no_such_way
from zerohop.storage.failures import of_errno
from zerohop.storage.file import FLAGS, File

if TYPE_CHECKING:
    from zerohop._native import HeldDescriptor
    from zerohop.storage.file_engine import FileEngine

# What a descriptor allows, as a mode.
_MODES: Final = {os.O_RDONLY: "r", os.O_RDWR: "r+", os.O_WRONLY: "w"}
# The numbers of `Direct` in native/storage/open_file.hpp.
_NEVER, _AUTOMATIC, _ALWAYS, _REQUIRED = range(4)
# A path that is no regular file must not block.
_NO_WAITING: Final = os.O_NONBLOCK | os.O_NOCTTY


def opened(
    store: FileEngine, root: int, path: str, mode: str, direct: bool | None, *, required: bool, gpu_required: bool
) -> File:
    """Do LocalStore.open_file.

    ``required``: every transfer must go past the page cache; ``gpu_required``: those with GPUs' memory must go straight
    between file and GPU.
    """
    if required and FLAGS[mode] & os.O_CREAT:
        _check_folder(root, path)
    with open_beneath(root, path, FLAGS[mode] | _NO_WAITING) as held:  # empty at the end, if native code has it
        fd = held.fileno()
        _check_regular(fd, "open", path)
        _wait_again(fd)
        if required:
            check_file(fd, "open", path)  # before it is emptied
        if mode == "w":
            os.ftruncate(fd, 0)
        wanted = ("open", path) if required else None
        native, alignment = _native(held, FLAGS[mode] & os.O_ACCMODE, direct, wanted, gpu_required=gpu_required)
    return File(store, path, mode, native, alignment)


def _check_folder(root: int, path: str) -> None:
    """Raise Unsupported before a file is made that would have no way past the page cache."""
    folder, _ = parent_of(root, path)
    with folder:
        if is_tmpfs(folder.fileno()):
            raise no_such_way("open", path)


def of_descriptor(store: FileEngine, fd: int, direct: bool | None, *, required: bool, gpu_required: bool) -> File:
    """Do Store.file_of; ``required`` and ``gpu_required`` as for ``opened``."""
    check_int("fd", fd, 0)
    if direct is not None:
        check_flag("direct", direct)
    path = path_of(fd)
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        _check_regular(fd, "file_of", path)
    except OverflowError:
        raise of_errno(errno.EBADF, "file_of", path, said="no descriptor has such a number") from None
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        said, fix = "the descriptor is not open in this process", "pass what os.open() or file.fileno() has returned"
        raise of_errno(errno.EBADF, "file_of", path, said=said, fix=fix) from None
    if flags & os.O_PATH:
        said, fix = "the descriptor was opened with O_PATH, and neither reads nor writes", "open it without O_PATH"
        raise of_errno(errno.EBADF, "file_of", path, said=said, fix=fix)
    access = flags & os.O_ACCMODE
    wanted = ("file_of", path) if required else None
    with _another(fd, access, flags, path) as own:
        native, alignment = _native(own, access, direct, wanted, gpu_required=gpu_required)
    return File(store, path, _MODES[access], native, alignment, readable=access != os.O_WRONLY)


def path_of(fd: int) -> str:
    """Return the path of a descriptor's file as the system tells it, for messages."""
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return f"descriptor {fd}"


def _another(fd: int, access: int, flags: int, path: str) -> HeldDescriptor:
    """Return a descriptor of the same file that stays when the caller closes theirs."""
    try:
        # Opened anew it has a position and flags of its own: O_APPEND, which ignores offsets, is not among them.
        own = open_path(f"/proc/self/fd/{fd}", access | _NO_WAITING)
    except OSError:
        # There is no /proc, or the file's mode allows less by now than it did when the descriptor was made.
        if flags & os.O_APPEND and access != os.O_RDONLY:
            fix = "open it without O_APPEND"
            raise of_errno(errno.EINVAL, "file_of", path, said="with O_APPEND, offsets mean nothing", fix=fix) from None
        return duplicate(fd)
    _wait_again(own.fileno())
    return own


def _wait_again(fd: int) -> None:
    """Take O_NONBLOCK back, except on tmpfs.

    io_uring takes it for a promise that no read blocks. On tmpfs, which says no such thing itself, that saves a
    hand-over to another thread each time. Elsewhere the call that begins a read would block.
    """
    if not is_tmpfs(fd):
        os.set_blocking(fd, True)


def _native(
    held: HeldDescriptor, access: int, direct: bool | None, required: tuple[str, str] | None, *, gpu_required: bool
) -> tuple[OpenFile, Alignment]:
    """Return the open file that native code takes, which owns the descriptor from then on.

    Args:
        held: the descriptor.
        access: what it allows, as a flag of ``os.open``.
        direct: as for ``Store.open``.
        required: names of the call and of the file if every transfer must go past the page cache, for the error.
        gpu_required: as for ``opened``.
    """
    fd, other = held.fileno(), None
    alignment = None if direct is False else alignment_of(fd)
    if alignment is not None:
        other = _without_cache(fd, access | (fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))
    if required is not None and other is None:
        raise no_such_way(*required)
    how = _REQUIRED if required else _NEVER if direct is False else _ALWAYS if direct else _AUTOMATIC
    alignment = alignment or USUAL
    return OpenFile(held, other, *alignment, how, no_gpudirect(fd), gpu_required), alignment


def _check_regular(fd: int, operation: str, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise of_errno(errno.EISDIR, operation, path)
    if not stat.S_ISREG(mode):
        raise of_errno(
            errno.EINVAL, operation, path, said="not a regular file", fix="name a file that has bytes of its own"
        )


def _without_cache(fd: int, flags: int) -> HeldDescriptor | None:
    """Return another descriptor of the same file, which goes past the page cache; None if its file system has none."""
    try:
        # By the descriptor, not by the path, which may lead to another file by now.
        return open_path(f"/proc/self/fd/{fd}", flags | os.O_DIRECT)
    except OSError as error:
        if out_of_descriptors(error):
            raise
        return None
