"""Declares StoreFile, an open file of a StoreFileSystem, and the errors that fsspec and its users know."""

from __future__ import annotations

import contextlib
import errno
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from fsspec.spec import AbstractBufferedFile

from zerohop.errors import StorageError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from zerohop.storage import File, Store

P = ParamSpec("P")
T = TypeVar("T")
_MODES = ("rb", "wb", "xb", "ab")


def python_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Have a method raise FileNotFoundError and its like, by which fsspec and its users tell what happened."""

    @functools.wraps(method)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with as_python_errors():
            return await method(*args, **kwargs)

    return called


@contextlib.contextmanager
def as_python_errors() -> Iterator[None]:
    """Raise the OSError of its number in place of a StorageError."""
    try:
        yield
    except StorageError as error:
        if not error.errno:
            raise
        # Python makes the class that belongs to the number, and puts the file's name behind the text.
        said = error.reason.removesuffix(f": {error.filename!r}")
        said = f"{said} ({error.fix})" if error.fix else said
        raise OSError(error.errno, said, error.filename or None) from error


class StoreFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """Reads or writes one file of a StoreFileSystem, in blocks, as fsspec's files do.

    A file is opened once, when this is made: all bytes are of that file, also if another one takes its name meanwhile.
    If it becomes shorter, reads raise EndOfFile.
    """

    def __init__(self, fs: Any, path: str, mode: str, block_size: int, **options: Any) -> None:
        """Use ``StoreFileSystem.open``."""
        if mode not in _MODES:
            raise NotImplementedError(f'mode is "rb", "wb", "xb" or "ab", not {shown(mode)}')
        with as_python_errors():
            self._file: File = fs.store.open(path).result() if mode == "rb" else _opened_to_write(fs, path, mode)
        size = self._file.size
        if mode == "rb":
            options["size"] = size
        super().__init__(fs, path, mode, block_size, **options)
        if mode == "ab":
            self.loc = size
        self._written = self.loc

    def close(self) -> None:
        """Write what is left, and close the file."""
        try:
            super().close()
        finally:
            # One that could not be opened has none.
            if "_file" in vars(self):
                self._file.close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        room = np.empty(max(0, min(end, self.size) - start), np.uint8)
        if room.size:
            with as_python_errors():
                self._file.read_into(room, start).result()
        return room.tobytes()

    def _upload_chunk(self, final: bool = False) -> bool:
        del final
        content = np.frombuffer(self.buffer.getvalue(), np.uint8)
        if content.size:
            with as_python_errors():
                self._file.write_from(content, self._written).result()
            self._written += content.size
        return True


def _opened_to_write(fs: Any, path: str, mode: str) -> File:
    try:
        return _made(fs.store, path, mode)
    except StorageError as error:
        if error.errno != errno.ENOENT or not fs.auto_mkdir:
            raise
    folders = path.split("/")[:-1]
    for count in range(1, len(folders) + 1):
        try:
            fs.store.mkdir("/".join(folders[:count])).result()
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
    return _made(fs.store, path, mode)


def _made(store: Store, path: str, mode: str) -> File:
    if mode != "ab":
        return store.open(path, "x" if mode == "xb" else "w").result()
    try:
        return store.open(path, "r+").result()
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
    try:
        return store.open(path, "x").result()
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise
        # Another process has made it meanwhile: it is not to be emptied.
        return store.open(path, "r+").result()
