"""Declares StoreFile, an open file of a StoreFileSystem, and the errors that fsspec and its users know."""

from __future__ import annotations

import contextlib
import errno
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from fsspec.spec import AbstractBufferedFile

from zerohop.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from zerohop.storage import File

P = ParamSpec("P")
T = TypeVar("T")


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
        # Python makes the class that belongs to the number.
        raise OSError(error.errno, str(error), error.filename or None) from error


class StoreFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """Reads or writes one file of a StoreFileSystem, in blocks, as fsspec's files do.

    A file that is read is opened once: all bytes are of that file, also if another one takes its name meanwhile. If it
    becomes shorter, reads raise EndOfFile.
    """

    def __init__(self, fs: Any, path: str, mode: str, block_size: int, **options: Any) -> None:
        """Use ``StoreFileSystem.open``."""
        self._source: File | None = None
        if mode == "rb":
            with as_python_errors():
                self._source = fs.store.open(path).result()
            options["size"] = self._source.size
        super().__init__(fs, path, mode, block_size, **options)

    def close(self) -> None:
        """Write what is left, and close the file."""
        super().close()
        if self._source is not None:
            self._source.close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self._source is not None
        room = np.empty(max(0, min(end, self.size) - start), np.uint8)
        if room.size:
            self._source.read_into(room, start).result()
        return room.tobytes()

    def _initiate_upload(self) -> None:
        mode = {"wb": "w", "xb": "x", "ab": "r+"}[self.mode]
        with as_python_errors():
            try:
                self._target = self.fs.store.open(self.path, mode).result()
            except StorageError as error:
                if self.mode != "ab" or error.errno != errno.ENOENT:
                    raise
                self._target = self.fs.store.open(self.path, "w").result()
        self._written = self._target.size if self.mode == "ab" else 0

    def _upload_chunk(self, final: bool = False) -> bool:
        content = np.frombuffer(self.buffer.getvalue(), np.uint8)
        with as_python_errors():
            if content.size:
                self._target.write_from(content, self._written).result()
                self._written += content.size
        if final:
            self._target.close()
        return True
