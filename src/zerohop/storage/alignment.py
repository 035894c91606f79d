"""Asks a file system what it wants of transfers past the page cache."""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any, Final, NamedTuple

# linux/stat.h and linux/fcntl.h of Linux 6.1. Older kernels leave the bit out of the answer.
_DIOALIGN: Final = 0x2000
_EMPTY_PATH: Final = 0x1000
_STATX_BYTES: Final = 256
# Where stx_mask and stx_dio_mem_align, which stx_dio_offset_align follows, lie in struct statx.
_MASK_AT: Final = 0
_ALIGN_AT: Final = 0x98
# f_type of tmpfs in struct statfs.
_TMPFS: Final = 0x01021994
# Those of ext4 and xfs.
_LOCAL: Final = (0xEF53, 0x58465342)
# Native code cuts transfers into pieces of this many bytes, each of which must be aligned.
_PIECE: Final = 1 << 20


class Alignment(NamedTuple):
    """Tells what must be a multiple of how many bytes, powers of two, for a transfer to go past the page cache.

    Attributes:
        memory: addresses in memory.
        offset: offsets in the file, and lengths.
    """

    memory: int
    offset: int


# Where a file system does not say; all known ones take less.
USUAL: Final = Alignment(4096, 4096)


def alignment_of(fd: int) -> Alignment | None:
    """Return what the file system wants of transfers past the page cache; None if the file has no such transfers."""
    if is_tmpfs(fd):
        return None  # since Linux 6.6 it takes O_DIRECT, and its files are the cache all the same
    statx = _libc_function("statx")
    facts = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(fd, b"", _EMPTY_PATH, _DIOALIGN, facts) != 0:
        return USUAL
    return alignment_in(facts.raw)


def alignment_in(facts: bytes) -> Alignment | None:
    """Return what a struct statx says of that, as ``alignment_of`` does."""
    (mask,) = struct.unpack_from("I", facts, _MASK_AT)
    if not mask & _DIOALIGN:
        return USUAL
    memory, offset = struct.unpack_from("II", facts, _ALIGN_AT)
    # Both are 0 for a file without such transfers.
    usable = memory.bit_count() == 1 and offset.bit_count() == 1 and offset <= _PIECE
    return Alignment(memory, offset) if usable else None


def is_tmpfs(fd: int) -> bool:
    """Tell whether a file lies in tmpfs."""
    return _file_system(fd) == _TMPFS


def no_gpudirect(fd: int) -> str:
    """Return why cuFile is not to be asked for a file; "" if it is.

    With other file systems a setting of cuFile may send bytes through host memory although that is forbidden.
    """
    return "" if _file_system(fd) in _LOCAL else "its file system is neither ext4 nor xfs"


def _file_system(fd: int) -> int:
    """Return the number of a file's kind of file system; 0 if it cannot be told."""
    fstatfs = _libc_function("fstatfs")
    facts = (ctypes.c_long * 64)()  # more than a struct statfs has, and its first field is a long
    return facts[0] if fstatfs is not None and fstatfs(fd, facts) == 0 else 0


@functools.cache
def _libc_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
