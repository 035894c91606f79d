"""Opens the files of a checkpoint in a Store, and reads their headers."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from zerohop.errors import DeadlineExceeded, from_os, out_of_descriptors
from zerohop.integrations.safetensors.arguments import check_store
from zerohop.integrations.safetensors.layout import PREFIX_BYTES, header_length, parse_layout
from zerohop.shown import shown
from zerohop.storage import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zerohop import Operation
    from zerohop.integrations.safetensors.arguments import Where
    from zerohop.integrations.safetensors.layout import SafetensorsFile
    from zerohop.storage import File

T = TypeVar("T")
_SUFFIX = ".safetensors"
# Read at first: the header of a shard is mostly shorter.
_GUESS = 64 << 10
_PIECE = 16 << 20
_MIB = 1 << 20


def ended(operation: Operation[T], timeout: float | None) -> T:
    """Return the value of an operation of a Store; end it if that takes longer than ``timeout`` seconds."""
    try:
        return operation.result(timeout)
    except DeadlineExceeded:
        # Otherwise it would warn later of an error that was not looked at.
        if not operation.cancel():
            operation.exception()
        raise


def descriptor_of(path: str, flags: int) -> int:
    """Do ``os.open``; raise LimitReached, which says what to type, where this process has no descriptor left."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if out_of_descriptors(error):
            raise from_os(error, operation="open") from None
        raise


class Source(NamedTuple):
    """Holds an open file and what its header says."""

    file: File
    layout: SafetensorsFile


@contextlib.contextmanager
def store_of(store: Store | Where | None, budget: int, near: Iterable[str], timeout: float | None) -> Iterator[Store]:
    """Lend the Store that an argument means: a Store, or a folder or URL, or that of files of this machine.

    A Store that is opened here has the time limit, is closed at the end, and bytes pass through ``budget`` bytes of its
    memory at most.
    """
    if isinstance(store, Store):
        yield store
        return
    if store is None:
        # Files are opened by this process, wherever they lie; a Store needs some folder that is there.
        folders = (Path(path).parent for path in near)
        store = next((folder for folder in folders if folder.is_dir()), Path("/"))
    check_store(store)
    with contextlib.closing(open_store(store, staging_bytes=max(_MIB, budget), timeout=timeout)) as opened:
        yield opened


@contextlib.contextmanager
def opened(store: Store, paths: list[str], timeout: float | None, *, within: bool) -> Iterator[list[Source]]:
    """Open the files, and those of folders whose names end with ``.safetensors``, and read their headers.

    Args:
        store: what reads them.
        paths: the paths.
        timeout: seconds for each answer of the store; None: the store's own.
        within: whether these are paths of the store; otherwise they are those of this process.

    Raises:
        SafetensorsError: a file breaks the format.
        OSError: there is no such file; of a Store, StorageError.
        ValueError: a folder has no such file.
    """
    with contextlib.ExitStack() as files:
        names = [name for path in paths for name in (_in_store(store, path, timeout) if within else _in_system(path))]
        sources = [files.enter_context(_open(store, name, timeout, within=within)) for name in names]
        heads = [_Head(file, name, timeout) for file, name in zip(sources, names, strict=True)]
        for head in heads:
            head.wait()
        yield [Source(file, head.layout()) for file, head in zip(sources, heads, strict=True)]


class _Head:
    """Reads a header; all of them are under way at once."""

    def __init__(self, file: File, name: str, timeout: float | None) -> None:
        self._file = file
        self._name = name
        self._timeout = timeout
        self._size = file.size
        self._start = np.empty(min(self._size, _GUESS), np.uint8)
        self._reading: Any = file.read_into(self._start, timeout=timeout) if self._size else None

    def wait(self) -> None:
        """Wait for the end, well or not: nothing is to be under way when one of them is refused."""
        if self._reading is not None:
            self._reading.exception()

    def layout(self) -> SafetensorsFile:
        """Return what the header says."""
        if self._reading is not None:
            self._reading.result()
        length = header_length(self._start[:PREFIX_BYTES].tobytes(), self._size, self._name)
        return parse_layout(self._header(length), self._size, self._name)

    def _header(self, length: int) -> bytes:
        got = self._start[PREFIX_BYTES : PREFIX_BYTES + length]
        if got.size == length:
            return got.tobytes()
        whole = np.empty(length, np.uint8)
        whole[: got.size] = got
        for at in range(got.size, length, _PIECE):
            piece = whole[at : at + _PIECE]
            self._file.read_into(piece, PREFIX_BYTES + at, timeout=self._timeout).result()
        return whole.tobytes()


def _open(store: Store, name: str, timeout: float | None, *, within: bool) -> File:
    if within:
        # Not by ended(): a file that is opened later is closed when its operation goes.
        return store.open(name).result(timeout)
    # A pipe would block until somebody writes to it; file_of() refuses it.
    fd = descriptor_of(name, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return store.file_of(fd).result()
    finally:
        os.close(fd)


def _in_store(store: Store, path: str, timeout: float | None) -> list[str]:
    if not stat.S_ISDIR(ended(store.stat(path), timeout).st_mode):
        return [path]
    names: list[str] = ended(store.listdir(path), timeout)
    return _chosen(path, names)


def _in_system(path: str) -> list[str]:
    return _chosen(path, os.listdir(path)) if Path(path).is_dir() else [path]  # noqa: PTH208  # names alone


def _chosen(folder: str, names: Iterable[str]) -> list[str]:
    found = sorted(name for name in names if name.endswith(_SUFFIX))
    if not found:
        raise ValueError(f"the folder {shown(folder)} has no file whose name ends with {_SUFFIX}")
    return [f"{folder.rstrip('/')}/{name}" if folder else name for name in found]
