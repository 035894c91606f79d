"""Memory at an address of the test's choosing, as a freed and reused allocation has."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from support.pattern import Bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

# Fails where something else lies at the address, instead of replacing it.
_MAP_FIXED_NOREPLACE = 0x100000
_FAILED = ctypes.c_void_p(-1).value


class Mapping:
    """Anonymous memory, page by page; anywhere, or exactly where an earlier one was."""

    def __init__(self, nbytes: int, address: int | None = None) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_FIXED_NOREPLACE if address is not None else 0)
        found = _libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert found != _FAILED, f"mmap: errno {ctypes.get_errno()}"
        assert address in (None, found)
        self.address: int = found
        self.nbytes = nbytes

    def array(self) -> Bytes:
        """A view that does not keep the memory mapped."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))

    def unmap(self) -> None:
        assert _libc.munmap(self.address, self.nbytes) == 0
