"""Finds the shared file behind a range of this process's memory, so that a peer on the host can map it too."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from zerohop.core.base import sandbox
from zerohop.errors import RegistrationFailed, named, of_sandbox, out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MAPS: Final = Path("/proc/self/maps")
_SHARED_MEMORY: Final = "/dev/shm/"
_DELETED: Final = " (deleted)"
# Of st_blocks.
_BLOCK_BYTES: Final = 512


class Backing(NamedTuple):
    """Names a range of a file by a descriptor, which the receiver closes, and an offset."""

    fd: int
    offset: int


class _Mapped(NamedTuple):
    start: int
    stop: int
    offset: int
    device: int
    inode: int
    path: str
    shared: bool


def backing_of(address: int, nbytes: int, nameless: Callable[[], int]) -> Backing | None:
    """Return the shared file behind [address, address + nbytes), or None if that is not all one shared mapping.

    For a file whose name was removed, ``nameless()`` returns a borrowed descriptor to try, or -1. A file is used only
    if it is the very one that is mapped, because another file may have taken its name since. One that cannot be opened,
    as where a sandbox refuses that, is none: peers then reach the memory another way.

    Raises:
        LimitReached: this process has no descriptor left.
    """
    if nbytes == 0:
        return None
    mapped = _find(address, nbytes)
    if mapped is None:
        return None
    offset = mapped.offset + (address - mapped.start)
    if mapped.path.endswith(_DELETED):
        fd = nameless()
        copy = _opened(lambda: os.dup(fd)) if fd >= 0 and _is_file(fd, mapped) else None
        return None if copy is None else Backing(copy, offset)
    if not mapped.path.startswith(_SHARED_MEMORY):
        return None
    opened = _opened(lambda: os.open(mapped.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
    if opened is None:
        return None
    if _is_file(opened, mapped):
        return Backing(opened, offset)
    sandbox.close(opened)
    return None


def _opened(call: Callable[[], T]) -> T | None:
    """Return what the call opens; None if it cannot be opened here. Raises LimitReached."""
    try:
        return call()
    except OSError as error:
        if out_of_descriptors(error):
            raise named(error) from None
        return None


def reserve(backing: Backing, nbytes: int, *, readonly: bool) -> None:
    """Have the file system give all pages of a range now, so that no later write to it finds none left.

    Memory that nobody may write keeps its holes, which read as zeros.

    Raises:
        RegistrationFailed: it has no room for the holes of the file, or the file ends within the range.
        LimitReached: this process has no descriptor left.
        Unsupported: a sandbox refuses the look.
    """
    # Opened anew: seeking would move the position of its owner's descriptor.
    try:
        fd = os.open(f"/proc/self/fd/{backing.fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise of_sandbox(error, "openat", operation="register") or named(error) from None
    try:
        status = os.fstat(fd)
        end = backing.offset + nbytes
        if status.st_size < end:
            raise RegistrationFailed(
                f"memory gone: its file has {status.st_size} bytes, and {end} are mapped",
                fix="make the file as long as its mapping, and keep it so",
                operation="register",
            )
        # The file systems of memory count pages, so that a file without holes costs no walk over them.
        if not readonly and status.st_blocks * _BLOCK_BYTES < status.st_size:
            _fill_holes(fd, backing.offset, end)
    except OSError as error:
        raise RegistrationFailed(
            f"out of shared memory: {nbytes} bytes of a shared file cannot be reserved ({error.strerror})",
            fix="make /dev/shm larger (mount -o remount,size=8G /dev/shm; docker run --shm-size=8g), or free some",
            operation="register",
        ) from error
    finally:
        sandbox.close(fd)


def _fill_holes(fd: int, start: int, end: int) -> None:
    at = start
    while (hole := os.lseek(fd, at, os.SEEK_HOLE)) < end:
        try:
            at = min(os.lseek(fd, hole, os.SEEK_DATA), end)
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is data behind the hole
                raise
            at = end
        os.posix_fallocate(fd, hole, at - hole)
        if at == end:
            return


def _is_file(fd: int, mapped: _Mapped) -> bool:
    try:
        status = os.fstat(fd)
    except (OSError, OverflowError):  # an object may give any int as its descriptor
        return False
    return (status.st_dev, status.st_ino) == (mapped.device, mapped.inode)


def may_be_replaced(address: int, nbytes: int) -> bool:
    """Tell whether other pages may come in the place of those of a range, without this process's doing.

    They may where the range is a shared mapping: whoever has its file may cut it, or give it holes. True, too, where a
    sandbox hides the mappings.
    """
    mappings = _mappings(address, address + nbytes)
    return mappings is None or any(each.shared for each in mappings)


def _find(address: int, nbytes: int) -> _Mapped | None:
    """Return the shared mapping that holds a range; neighbouring mappings of consecutive file parts count as one."""
    found: _Mapped | None = None
    for here in _mappings(address, address + nbytes) or ():
        if not here.shared:
            return None
        if found is None:
            if here.start > address:
                return None
            found = here
        elif (here.device, here.inode, here.offset) != (
            found.device,
            found.inode,
            found.offset + (here.start - found.start),
        ):
            return None
        if here.stop >= address + nbytes:
            return found
    return None


def _mappings(address: int, stop: int) -> list[_Mapped] | None:
    """Return the mappings that a range touches; None if they cannot be read."""
    lines = _opened(lambda: _MAPS.open(encoding="utf-8", errors="surrogateescape"))
    if lines is None:
        return None
    found = []
    with sandbox.unless_refused(), lines:
        for line in lines:
            bounds, permissions, offset, device, inode, *path = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(part, 16) for part in bounds.split("-"))
            if end <= address:
                continue
            if start >= stop:
                break
            major, minor = (int(part, 16) for part in device.split(":"))
            where = int(offset, 16), os.makedev(major, minor), int(inode), path[0] if path else ""
            found.append(_Mapped(start, end, *where, shared=permissions[3] == "s"))
    return found
