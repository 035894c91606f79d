"""Knows which file each registered descriptor stands for."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from zerohop.compat.hf3fs import state
from zerohop.compat.hf3fs.log import logger
from zerohop.compat.hf3fs.mounts import server_of
from zerohop.compat.hf3fs.state import Registered
from zerohop.config.checks import check_int
from zerohop.errors import StorageError

if TYPE_CHECKING:
    from zerohop.storage import File, Store


def register_fd(fd: int, flags: int = 0) -> None:
    """Make a descriptor of a regular file known, so that rings may use it. Deregister it before you close it.

    Args:
        fd: the descriptor. It stays yours; the ring has one of its own.
        flags: no effect, as in 3FS.

    Raises:
        TypeError: ``fd`` is no integer.
        StorageError: an OSError, with the reason. EBADF: the descriptor is not open, or reads and writes nothing;
            EISDIR: it is a folder; EINVAL: its file is no regular one, or it is registered already.
    """
    del flags
    if _number(fd) < 0:
        raise StorageError(f"{fd} is no descriptor", errno=errno.EBADF, operation="register_fd")
    current = state.current()
    file = current.store().file_of(fd).result()
    facts, mode = file.stat(), file.mode
    url, path = server_of(file.path) if Path(file.path).is_absolute() else ("", "")
    if url:
        file = _served(current.store(url), path, mode, facts)
    made = Registered(file, facts.st_dev, facts.st_ino, readable=mode != "w", writable=mode != "r")
    with current.lock:
        known = current.registered.get(fd)
        if known is not None and (known.device, known.inode) == (made.device, made.inode):
            raise StorageError(
                f"descriptor {fd} is registered already, for {known.file.path!r}",
                errno=errno.EINVAL,
                filename=known.file.path,
                fix=f"deregister_fd({fd}) first; and before each os.close({fd})",
                operation="register_fd",
            )
        current.registered[fd] = made
    if known is not None:
        logger.warning(
            "descriptor %s was closed without deregister_fd: it was registered for %r, and is now for %r",
            fd,
            known.file.path,
            file.path,
        )
    logger.info("registered descriptor %s: %r, device %s, inode %s", fd, file.path, made.device, made.inode)


def _served(store: Store, path: str, mode: str, facts: os.stat_result) -> File:
    """Return the server's file; raise StorageError (ESTALE) if it is not the one that the descriptor has."""
    file = store.open(path, "r" if mode == "r" else "r+").result()
    there = file.stat()
    if (there.st_size, there.st_mtime_ns) != (facts.st_size, facts.st_mtime_ns):
        file.close()
        raise StorageError(
            f"the server's file has {there.st_size} bytes and was changed at {there.st_mtime_ns}, the descriptor's "
            f"{facts.st_size} at {facts.st_mtime_ns}",
            errno=errno.ESTALE,
            filename=path,
            fix="mount the server at a folder where os.open finds the very files that it serves",
            operation="register_fd",
        )
    return file


def deregister_fd(fd: int) -> None:
    """Forget a descriptor; without effect if it is not registered. Transfers that were prepared go on."""
    current = state.current()
    with current.lock:
        current.registered.pop(abs(_number(fd)), None)


def registered(fd: int) -> Registered:
    """Return what a descriptor, or the negative number that ``hf3fs_reg_fd`` gave for it, was registered for.

    Raises:
        TypeError: it is no integer.
        StorageError: EBADF: it is not registered, or its number is another file's by now.
    """
    number = abs(_number(fd))
    found = state.current().registered.get(number)
    if found is None:
        raise StorageError(
            f"descriptor {number} is not registered in this process",
            errno=errno.EBADF,
            fix=f"register_fd({number}), in each process",
            operation="prepare",
        )
    try:
        facts = os.fstat(number)
    except OSError:  # it was closed; as in 3FS, what was registered is still meant
        return found
    if (facts.st_dev, facts.st_ino) != (found.device, found.inode):
        raise StorageError(
            f"descriptor {number} was registered for {found.file.path!r} (device {found.device}, inode {found.inode}), "
            f"and is another file's now (device {facts.st_dev}, inode {facts.st_ino})",
            errno=errno.EBADF,
            filename=found.file.path,
            fix=f"deregister_fd({number}) before os.close({number}), and register_fd({number}) after os.open",
            operation="prepare",
        )
    return found


def _number(fd: int) -> int:
    return check_int("a descriptor", fd, -(2**31) + 1, 2**31 - 1)
