"""Offers the functions of ``hf3fs_fuse.io``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zerohop.compat.hf3fs import state
from zerohop.compat.hf3fs.iovec import iovec, made
from zerohop.compat.hf3fs.mounts import extract_mount_point, folder_of, local_path
from zerohop.compat.hf3fs.rings import ioring
from zerohop.config.checks import check_int, check_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GIB: Final = 1 << 30


def make_iovec(shm: Any, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1) -> iovec:
    """Register host memory for transfers, and return it as an iovec. It is registered until all slices are dropped.

    Args:
        shm: a SharedMemory, or another buffer that may be written to, such as a bytearray or an array. A SharedMemory
            may be unlinked at once; close it after the last transfer.
        hf3fs_mount_point: a mount point, or a folder.
        block_size: no effect.
        numa: no effect.

    Raises:
        TypeError, ValueError: an argument makes no sense.
        StorageError: there is no such mount point.
        RegistrationFailed, LimitReached: the system refused.
    """
    result: iovec = made(iovec, shm, hf3fs_mount_point, block_size, numa)
    return result


def make_ioring(
    hf3fs_mount_point: str,
    entries: int,
    for_read: bool = True,
    io_depth: int = 0,
    priority: int | None = None,
    timeout: int | None = None,
    numa: int = -1,
    flags: int = 0,
) -> ioring:
    """Make a ring.

    Args:
        hf3fs_mount_point: a mount point, or a folder.
        entries: transfers that may be prepared, or under way, or have ended with their results not taken yet.
        for_read: whether it reads; otherwise it writes.
        io_depth: 0: ``submit`` begins everything; n: full batches of n; -n: batches of n at most.
        priority: an ``IorPriority``, without effect.
        timeout: milliseconds after which a batch begins that is not full; None or 0: one of a negative ``io_depth``
            begins at once, one of a positive waits for ``wait``.
        numa: no effect.
        flags: 2: a read that would read a hole has the result ``-errno.ENODATA``, and reads nothing; 1: no effect.

    Raises:
        TypeError, ValueError: an argument makes no sense.
        StorageError: there is no such mount point.
    """
    return ioring(hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, flags)


def read_file(
    fn: str,
    hf3fs_mount_point: str | None = None,
    block_size: int = _GIB,
    off: int = 0,
    priority: int | None = None,
    cb: Callable[[memoryview, int], Any] | None = None,
) -> bytes | None:
    """Read a file from an offset on, and return its bytes; or give them to a function, block by block.

    Args:
        fn: path of the file; beneath a mount point it is looked for in its folder.
        hf3fs_mount_point: its mount point; None: found by the path.
        block_size: bytes that are read at a time.
        off: offset of the first byte.
        priority: no effect.
        cb: a function of a block and its offset. The block is valid until it returns. An int that it returns is the
            offset that is read next; anything else that is true ends the reading.

    Returns:
        The bytes; None with a ``cb``.

    Raises:
        TypeError, ValueError: an argument makes no sense.
        OSError: the system refused, with the number and the reason.
    """
    del priority
    if hf3fs_mount_point is not None:
        folder_of(hf3fs_mount_point)
    check_int("block_size", block_size, 1)
    check_int("off", off, 0)
    store = state.current().store()
    blocks: list[bytes] = []
    fd = os.open(local_path(fn), os.O_RDONLY | os.O_CLOEXEC)
    try:
        file = store.file_of(fd).result()
    finally:
        os.close(fd)
    with file, store.iov(min(block_size, max(1, file.size))) as iov:
        block = iov.memory.numpy().data
        while True:
            nbytes = file.read_into(iov, off, short=True).result()
            if nbytes == 0:
                break
            if cb is None:
                blocks.append(bytes(block[:nbytes]))
            else:
                said = cb(block[:nbytes], off)
                if type(said) is int:  # True is an int, and means the end
                    off = check_int("the offset that cb returned", said, 0)
                    continue
                if said:
                    break
            off += nbytes
    return b"".join(blocks) if cb is None else None


def force_fsync(fd: int) -> int:
    """Have everything that was written to a file outlive a crash of the machine; return 0, or raise OSError."""
    os.fsync(check_int("fd", fd, -1, (1 << 31) - 1))
    return 0


def punch_hole(file: str | int, start: Sequence[int], end: Sequence[int], flags: int = 0) -> None:
    """Give the blocks of ranges of a file back to the file system; they read as zeros, and the size stays.

    Args:
        file: path of the file, or a descriptor that may write.
        start: offsets of the first bytes.
        end: offsets behind the last, as many.
        flags: no effect, as in 3FS.

    Raises:
        TypeError, ValueError: an argument makes no sense.
        OSError: the system refused.
    """
    check_int("flags", flags, 0)
    check_list("start", start)
    check_list("end", end)
    if len(start) != len(end):
        raise ValueError(f"there are {len(start)} starts, and {len(end)} ends")
    for first, behind in zip(start, end, strict=True):
        check_int("an end", behind, check_int("a start", first, 0) + 1)
    fd = file if isinstance(file, int) else os.open(local_path(file), os.O_RDWR | os.O_CLOEXEC)
    try:
        with state.current().store().file_of(fd).result() as opened:
            for first, behind in zip(start, end, strict=True):
                opened.punch_hole(first, behind - first).result()
    finally:
        if not isinstance(file, int):
            os.close(fd)


def hardlink(target: str, link_name: str) -> None:
    """Give a file another name, beneath the same mount point; raise OSError if the system refuses."""
    Path(local_path(link_name)).hardlink_to(local_path(target))


__all__ = [
    "extract_mount_point",
    "force_fsync",
    "hardlink",
    "make_ioring",
    "make_iovec",
    "punch_hole",
    "read_file",
]
