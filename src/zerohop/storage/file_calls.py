"""Does what concerns a whole open file, given by its descriptor."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PUNCH_HOLE, _KEEP_SIZE = 2, 1


def _punch_hole(fd: int, offset: int, nbytes: int) -> None:
    function: Any = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if function(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, nbytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _hole_in(fd: int, offset: int, nbytes: int) -> int | None:
    end = min(offset + nbytes, os.fstat(fd).st_size)
    if offset >= end:
        return None
    # A descriptor that Store.file_of could only duplicate has the caller's position, which stays as it was.
    before = os.lseek(fd, 0, os.SEEK_CUR)
    hole = os.lseek(fd, offset, os.SEEK_HOLE)
    os.lseek(fd, before, os.SEEK_SET)
    return hole if hole < end else None


# Each takes the descriptor and as many numbers as its entry says, and raises OSError.
CALLS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "stat": (os.fstat, 0),
    "truncate": (os.ftruncate, 1),
    "fsync": (os.fsync, 0),
    "punch_hole": (_punch_hole, 2),
    "hole_in": (_hole_in, 2),
}
