"""Opens the files of a checkpoint in a Store, and reads their headers."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerohop.integrations.safetensors.layout import PREFIX_BYTES, header_length, parse_layout
from zerohop.shown import shown
from zerohop.storage import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zerohop.integrations.safetensors.layout import SafetensorsFile
    from zerohop.storage import File

    Where = str | os.PathLike[str]

_SUFFIX = ".safetensors"
# Read at first: the header of a shard is mostly shorter.
_GUESS = 64 << 10
_MIB = 1 << 20


class Source(NamedTuple):
    """Holds an open file and what its header says."""

    file: File
    layout: SafetensorsFile


@contextlib.contextmanager
def store_of(store: Store | Where | None, budget: int, near: Iterable[str]) -> Iterator[Store]:
    """Lend the Store that an argument means: a Store, or a folder or URL, or that of files of this machine.

    A Store that is opened here is closed at the end, and bytes pass through ``budget`` bytes of its memory at most.
    """
    if isinstance(store, Store):
        yield store
        return
    if store is None:
        # Files are opened by this process, wherever they lie; a Store needs some folder.
        store = next((str(Path(path).parent) for path in near), ".")
    with contextlib.closing(open_store(store, staging_bytes=max(_MIB, budget))) as opened:
        yield opened


def paths_of(paths: Where | Iterable[Where]) -> list[str]:
    """Return the paths that an argument means.

    Raises:
        TypeError: it is no path, and nothing that has paths in it.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"a path is a string or a Path, not {shown(path)}")
    return [os.fspath(path) for path in given]


@contextlib.contextmanager
def opened(store: Store, paths: list[str], *, within: bool) -> Iterator[list[Source]]:
    """Open the files, and those of folders whose names end with ``.safetensors``, and read their headers.

    Args:
        store: what reads them.
        paths: the paths.
        within: whether these are paths of the store; otherwise they are those of this process.

    Raises:
        SafetensorsError: a file breaks the format.
        OSError: there is no such file; of a Store, StorageError.
        ValueError: a folder has no such file.
    """
    with contextlib.ExitStack() as files:
        names = [name for path in paths for name in (_in_store(store, path) if within else _in_system(path))]
        sources = [files.enter_context(_open(store, name, within=within)) for name in names]
        heads = [_Head(file, name) for file, name in zip(sources, names, strict=True)]
        for head in heads:
            head.wait()
        yield [Source(file, head.layout()) for file, head in zip(sources, heads, strict=True)]


class _Head:
    """Reads a header; all of them are under way at once."""

    def __init__(self, file: File, name: str) -> None:
        self._file = file
        self._name = name
        self._size = file.size
        self._start = np.empty(min(self._size, _GUESS), np.uint8)
        self._reading: Any = file.read_into(self._start) if self._size else None

    def wait(self) -> None:
        """Wait for the end, well or not: nothing is to be under way when one of them is refused."""
        if self._reading is not None:
            self._reading.exception()

    def layout(self) -> SafetensorsFile:
        """Return what the header says."""
        if self._reading is not None:
            self._reading.result()
        start = self._start.tobytes()
        end = PREFIX_BYTES + header_length(start[:PREFIX_BYTES], self._size, self._name)
        if end > len(start):
            rest = np.empty(end - len(start), np.uint8)
            self._file.read_into(rest, len(start)).result()
            start += rest.tobytes()
        return parse_layout(start[PREFIX_BYTES:end], self._size, self._name)


def _open(store: Store, name: str, *, within: bool) -> File:
    if within:
        return store.open(name).result()
    # A pipe would block until somebody writes to it; file_of() refuses it.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return store.file_of(fd).result()
    finally:
        os.close(fd)


def _in_store(store: Store, path: str) -> list[str]:
    if not stat.S_ISDIR(store.stat(path).result().st_mode):
        return [path]
    return _chosen(path, store.listdir(path).result())


def _in_system(path: str) -> list[str]:
    return _chosen(path, os.listdir(path)) if Path(path).is_dir() else [path]  # noqa: PTH208  # names alone


def _chosen(folder: str, names: Iterable[str]) -> list[str]:
    found = sorted(name for name in names if name.endswith(_SUFFIX))
    if not found:
        raise ValueError(f"the folder {folder!r} has no file whose name ends with {_SUFFIX}")
    return [f"{folder.rstrip('/')}/{name}" if folder else name for name in found]
