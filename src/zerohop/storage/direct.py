"""Refuses transfers that cannot be direct, where the store or its Context was opened with ``require="direct"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop.core.face import HOST, index_array
from zerohop.errors import Unsupported
from zerohop.machine.gpudirect import fix_of
from zerohop.storage.alignment import USUAL, Alignment, alignment_of

if TYPE_CHECKING:
    from zerohop.storage.file_engine import OpenFile, Places

# The numbers of `Obstacle` in native/storage/open_file.hpp.
_FILE, _DEVICE, _OFFSET, _LENGTH, _MEMORY, _END = range(1, 7)
# cuFile takes ranges whose numbers are multiples of this (native/storage/gpudirect.hpp).
_GPU: Final = Alignment(4096, 4096)
_FORBIDS: Final = 'require="direct" forbids'
_DROP: Final = 'or open the store without require="direct"'


def check_ranges(
    kind: str, file: OpenFile, part: tuple[Any, int, int], places: Places, *, writes: bool, device: str
) -> None:
    """Raise Unsupported unless transfers can go past the page cache, and straight to or from the memory of a GPU.

    Args:
        kind: name of the call.
        file: the file.
        part: the memory as native code knows it, and the part of it: offset and length.
        places: of each transfer.
        writes: whether the file is written.
        device: name of the memory's device.
    """
    names = "offsets in the file", "offsets in the memory", "lengths"
    arrays = [index_array(each, name) for each, name in zip(places, names, strict=True)]
    memory, start, length = part
    index, obstacle = file.native().obstacle(memory, writes, start, length, *arrays)
    if obstacle:
        place = int(arrays[0][index]), int(arrays[2][index])
        raise _of_obstacle(obstacle, kind, file, place, device)


def check_file(fd: int, operation: str, path: str) -> None:
    """Raise Unsupported if the file has no transfers past the page cache."""
    if alignment_of(fd) is None:
        raise no_such_way(operation, path)


def no_such_way(operation: str, path: str) -> Unsupported:
    """Return the error for a file that transfers cannot reach past the page cache."""
    return Unsupported(
        f"the file system of {path!r} has no way past the page cache, and {_FORBIDS} the way through it",
        fix=f"put the file on a disk with ext4, xfs or the like, {_DROP}",
        operation=operation,
    )


def of_device(operation: str, device: str, why: str) -> Unsupported:
    """Return the error for memory of a device, which bytes of files reach through host buffers, and why."""
    return Unsupported(
        f"bytes between this file and {device} pass through host buffers, and {_FORBIDS} that: {why}",
        fix=f'{fix_of(why)}; or read into memory of the host, store.iov(nbytes); or drop require="direct"',
        operation=operation,
    )


def _of_obstacle(obstacle: int, operation: str, file: OpenFile, place: tuple[int, int], device: str) -> Unsupported:
    """Return the error for a range: its offset in the file, and its length."""
    if obstacle == _DEVICE:
        return of_device(operation, device, file.native().no_gpudirect)
    if obstacle == _FILE:
        return no_such_way(operation, file.path)
    alignment = (file.alignment or USUAL) if device == HOST else _GPU
    offset, nbytes = place
    said, fix = {
        _OFFSET: (f"offset {offset} in the file is no multiple of {alignment.offset}", "take a multiple"),
        _LENGTH: (f"{nbytes} bytes are no multiple of {alignment.offset}", "take a multiple"),
        _MEMORY: (
            f"the memory for it begins at no multiple of {alignment.memory}",
            "take memory of store.iov(nbytes), and a multiple as the offset in it",
        ),
        _END: (
            f"bytes {offset} to {offset + nbytes} go behind the end of the file",
            "read less, and the last bytes with a store of another kind",
        ),
    }[obstacle]
    return Unsupported(
        f"cannot go {_way_to(device)}: {said}: {file.path!r}",
        fix=f"{fix}, {_DROP}",
        operation=operation,
    )


def _way_to(device: str) -> str:
    if device == HOST:
        return f"past the page cache, and {_FORBIDS} the way through it"
    return f"straight between file and {device}, and {_FORBIDS} the way through host buffers"
