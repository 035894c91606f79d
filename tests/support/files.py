"""Memory that lies in a file, or at addresses of its own, which a test takes away beneath its registration."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from support.outcomes import Outcome, attempt
from support.pattern import Bytes, poison

if TYPE_CHECKING:
    import zerohop as zh
    from zerohop.core.memory.rights import Rights

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MappedFile:
    """A file that is mapped and registered. On /dev/shm peers map it too."""

    def __init__(self, context: zh.Context, path: str, nbytes: int, *, sparse: bool = False) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, nbytes)
        self.nbytes = nbytes
        self.map = mmap.mmap(self._fd, nbytes)
        self.array: Bytes = np.frombuffer(self.map, np.uint8)
        if not sparse:
            self.array[:] = poison(nbytes)
        try:
            self.memory = context.register(self.array)
        except BaseException:
            os.close(self._fd)  # the map goes with what the traceback holds
            raise

    def truncate(self, nbytes: int) -> None:
        os.ftruncate(self._fd, nbytes)

    def close(self) -> None:
        self.memory.close()
        self._close_file()

    def _close_file(self) -> None:
        del self.array
        self.map.close()
        os.close(self._fd)


class Pages:
    """Anonymous memory that is registered by its address."""

    def __init__(self, context: zh.Context, nbytes: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.nbytes = nbytes
        self.address = int(_LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0))
        self.memory = context.register((self.address, nbytes, "host"))

    def take(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Take the memory away. The addresses stay reserved, so that nobody else's memory comes to lie there."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        start = self.address + offset
        assert _LIBC.mmap(start, self.nbytes if nbytes is None else nbytes, 0, flags, -1, 0) == start

    def close(self) -> None:
        self.memory.close()
        _LIBC.munmap(self.address, self.nbytes)


class Files:
    """Mixed into Service."""

    context: zh.Context
    _files: dict[str, MappedFile]
    _pages: list[Pages]

    def map_file(self, path: str, nbytes: int, rights: Rights = "rw") -> bytes:
        """Register a new file; returns its handle."""
        self._files[path] = MappedFile(self.context, path, nbytes)
        return bytes(self._files[path].memory.share(rights))

    def try_sparse_file(self, path: str, nbytes: int) -> Outcome:
        """Register a file that has a size and no bytes yet."""
        return attempt(lambda: MappedFile(self.context, path, nbytes, sparse=True).close())

    def truncate_file(self, path: str, nbytes: int) -> None:
        self._files[path].truncate(nbytes)

    def close_file(self, path: str) -> None:
        self._files.pop(path).close()
        Path(path).unlink()

    def map_pages(self, nbytes: int) -> bytes:
        self._pages.append(Pages(self.context, nbytes))
        return bytes(self._pages[-1].memory.share("rw"))

    def take_pages(self) -> None:
        self._pages[-1].take()

    def close_pages(self) -> None:
        self._pages.pop().close()
