"""Offers Stores as a file system of fsspec: ``zerohop://HOST:PORT/path`` on a server, or a folder of this machine.

``register()`` makes the name known to fsspec; then ``fsspec.open("zerohop://10.0.0.7:7000/weights.bin")`` reads from
that server, and so do the libraries that take URLs of fsspec.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import shutil
import stat
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from fsspec import register_implementation
from fsspec.asyn import AsyncFileSystem, sync

from zerohop.errors import StorageError
from zerohop.integrations.fsspec_files import StoreFile, as_python_errors, python_errors
from zerohop.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.storage import File, Store

PROTOCOL: Final = "zerohop"
_SCHEME: Final = f"{PROTOCOL}://"
_PIECE: Final = 16 << 20
_BLOCK: Final = 5 << 20
# Errors of a link that leads nowhere, or out of the Store.
_NOWHERE: Final = (errno.ENOENT, errno.EXDEV, errno.ELOOP)


class StoreFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Reads and writes the files of one Store. Paths count from its folder.

    ``cat_ranges`` reads all ranges of a file as one operation. A StorageError becomes the OSError of its number,
    such as FileNotFoundError.
    """

    protocol = PROTOCOL
    root_marker = ""

    def __init__(self, where: str | os.PathLike[str] = "", *, store: Store | None = None, **options: Any) -> None:
        """Open a folder, or the URL of a server; or take a Store, which stays the caller's.

        Args:
            where: as for ``open_store``.
            store: a Store that is open.
            options: those of AsyncFileSystem; ``store_options`` are passed to ``open_store``.
        """
        store_options = options.pop("store_options", {})
        super().__init__(**options)
        if store is None and not where:
            raise ValueError(f'name the folder or the server: StoreFileSystem("/data"), or {_SCHEME}HOST:PORT/path')
        # fsspec calls it of the class, and of an object, which knows whose paths it has.
        self._strip_protocol = self._own_name  # type: ignore[method-assign]  # of this object alone
        self._opened = store is None
        self.store: Store = open_store(where, **store_options) if store is None else store

    def close(self) -> None:
        """Close the Store that was opened here."""
        if self._opened:
            self.clear_instance_cache()  # fsspec would give this one out again
            self.store.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the path in its Store."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path)
        if text.startswith(_SCHEME):
            text = text[len(_SCHEME) :].partition("/")[2]
        return text.strip("/")

    def _own_name(self, path: Any) -> Any:
        """Return the path in this Store; raise ValueError for a URL of another server."""
        for each in path if isinstance(path, list) else [path]:
            server = _server_of(str(each))
            if server and server != _server_of(self.store.folder):
                raise ValueError(f"{each} is a file of another server than {self.store.folder}")
        return type(self)._strip_protocol(path)  # noqa: SLF001  # of the class

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, str]:
        """Return the server that a URL names."""
        server = _server_of(str(path))
        return {"where": _SCHEME + server} if server else {}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        (content,) = await self._ranges(self._strip_protocol(path), [(start, end)])
        return content

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        del max_gap, batch_size
        count = len(paths)
        firsts = list(starts) if isinstance(starts, (list, tuple, np.ndarray)) else [starts] * count
        lasts = list(ends) if isinstance(ends, (list, tuple, np.ndarray)) else [ends] * count
        if len(firsts) != count or len(lasts) != count:
            raise ValueError(f"{count} paths, {len(firsts)} starts and {len(lasts)} ends: give as many of each")
        of_file: dict[str, list[int]] = {}
        for at, path in enumerate(paths):
            of_file.setdefault(self._strip_protocol(path), []).append(at)
        found: list[Any] = [None] * count

        async def read(path: str, wanted: list[int]) -> None:
            try:
                contents: Sequence[Any] = await self._ranges(path, [(firsts[at], lasts[at]) for at in wanted])
            except (OSError, ValueError) as error:
                if on_error != "return":
                    raise
                contents = [error] * len(wanted)
            for at, content in zip(wanted, contents, strict=True):
                found[at] = content

        await asyncio.gather(*(read(path, wanted) for path, wanted in of_file.items()))
        return found

    @python_errors
    async def _ranges(self, path: str, ranges: list[tuple[int | None, int | None]]) -> list[bytes]:
        """Read ranges of one file; bounds are those of a slice, so that they may be negative or beyond the end."""
        with await self.store.open(path) as file:
            size = file.size
            places = [slice(start, end).indices(size)[:2] for start, end in ranges]
            offsets = np.array([start for start, _ in places], np.int64)
            lengths = np.array([max(0, end - start) for start, end in places], np.int64)
            into = np.cumsum(lengths) - lengths
            room = np.empty(int(lengths.sum()), np.uint8)
            if room.size:
                real = lengths > 0
                await file.read_many(room, offsets[real], into[real], lengths[real])
        return [room[at : at + length].tobytes() for at, length in zip(into.tolist(), lengths.tolist(), strict=True)]

    @python_errors
    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        content = np.frombuffer(value, np.uint8)  # raises before the file is emptied
        with await self.store.open(self._strip_protocol(path), "x" if mode == "create" else "w") as file:
            if content.size:
                await file.write_from(content)

    @python_errors
    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return _described(name, await self.store.stat(name))

    async def _exists(self, path: str, **_: Any) -> bool:
        name = self._strip_protocol(path)
        try:
            await self.store.stat(name)
        except StorageError as error:
            if error.errno not in (*_NOWHERE, errno.ENOTDIR, errno.ENAMETOOLONG):
                raise
            return False
        except ValueError:  # no path has a null character
            return False
        return True

    @python_errors
    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path)
        own = await self._info(name)
        if own["type"] != "directory":
            return [own] if detail else [name]
        names = sorted(f"{name}/{each}" if name else each for each in await self.store.listdir(name))
        return list(await asyncio.gather(*(self._listed(each) for each in names))) if detail else names

    async def _listed(self, name: str) -> dict[str, Any]:
        """Describe a name of a folder, also one that leads nowhere: it hides nothing of the others."""
        try:
            return _described(name, await self.store.stat(name))
        except StorageError as error:
            if error.errno not in _NOWHERE:
                raise
            return {"name": name, "size": 0, "type": "other"}

    @python_errors
    async def _rm_file(self, path: str, **_: Any) -> None:
        await self.store.unlink(self._strip_protocol(path))

    @python_errors
    async def _rm(self, path: Any, recursive: bool = False, batch_size: int | None = None, **_: Any) -> None:
        del batch_size
        for each in await self._expand_path(path):
            await self._remove(self._strip_protocol(each), recursive=recursive)

    async def _remove(self, name: str, *, recursive: bool) -> None:
        """Remove a file, or a folder; of a link the link alone, wherever it leads."""
        try:
            await self.store.unlink(name)
        except StorageError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        else:
            return
        for each in await self.store.listdir(name) if recursive else ():
            await self._remove(f"{name}/{each}", recursive=True)
        await self.store.rmdir(name)

    @python_errors
    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        name = self._strip_protocol(path)
        if create_parents and "/" in name:
            await self._makedirs(name.rpartition("/")[0], exist_ok=True)
        await self.store.mkdir(name)

    @python_errors
    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        name = self._strip_protocol(path)
        if await self._exists(name):
            if not exist_ok or not await self._isdir(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            return
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            try:
                await self.store.mkdir("/".join(parts[:count]))
            except StorageError as error:  # the Store's own call raises it
                if error.errno != errno.EEXIST or (count == len(parts) and not exist_ok):
                    raise

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        with as_python_errors():
            self.store.rmdir(self._strip_protocol(path)).result()

    def modified(self, path: str) -> dt.datetime:
        """Return when a file was written last."""
        return dt.datetime.fromtimestamp(self.info(path)["mtime"], dt.timezone.utc)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Rename a file or a folder; into ``path2``, if that is a folder or ends with a slash.

        Several paths, or a pattern, are copied and then removed, as fsspec does it.
        """
        if isinstance(path1, str) and isinstance(path2, str) and not has_magic(path1) and maxdepth is None:
            sync(self.loop, self._rename, path1, path2)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    @python_errors
    async def _rename(self, path1: str, path2: str) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if not target or path2.endswith("/") or await self._isdir(target):
            target = f"{target}/{source.rpartition('/')[2]}".lstrip("/")
        await self.store.rename(source, target)

    @python_errors
    async def _mv_file(self, path1: str, path2: str, **_: Any) -> None:
        await self.store.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    @python_errors
    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file, or make a folder like the one that is named: fsspec names each, in no order."""
        target = self._strip_protocol(path2)
        if await self._isdir(path1):
            await self._makedirs(target, exist_ok=True)
            return
        if "/" in target:
            await self._makedirs(target.rpartition("/")[0], exist_ok=True)
        with await self.store.open(self._strip_protocol(path1)) as source:
            size = source.size
            await self._check_another(source, target)
            with await self.store.open(target, "w") as copy:
                await self._copy_bytes(source, copy, size)

    @python_errors
    async def _get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        """Copy a file of the Store to one of this machine, or make a folder like the one that is named."""
        if await self._isdir(rpath):
            Path(lpath).mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  # a call on this machine, and short
            return
        with await self.store.open(self._strip_protocol(rpath)) as source, open(lpath, "wb") as target:  # noqa: ASYNC230,PTH123  # a local path, of any kind that open() takes
            for at in range(0, size := source.size, _PIECE):
                room = np.empty(min(_PIECE, size - at), np.uint8)
                await source.read_into(room, at)
                target.write(room.data)

    @python_errors
    async def _put_file(self, lpath: Any, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        """Copy a file of this machine into the Store."""
        # The source first: if there is none, the target stays as it is.
        with (
            open(lpath, "rb") as source,  # noqa: ASYNC230,PTH123  # as above
            await self.store.open(self._strip_protocol(rpath), "x" if mode == "create" else "w") as target,
        ):
            at = 0
            while part := source.read(_PIECE):
                await target.write_from(np.frombuffer(part, np.uint8), at)
                at += len(part)

    async def _check_another(self, source: File, path: str) -> None:
        """Raise SameFileError if a path leads to an open file, which a copy would empty before it is read."""
        try:
            found = await self.store.stat(path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return
        if os.path.samestat(source.stat(), found):
            raise shutil.SameFileError(f"{source.path!r} and {path!r} are the same file")

    @staticmethod
    async def _copy_bytes(source: File, target: File, size: int) -> None:
        for at in range(0, size, _PIECE):
            room = np.empty(min(_PIECE, size - at), np.uint8)
            await source.read_into(room, at)
            await target.write_from(room, at)

    @property
    def transaction(self) -> Any:
        """Refuse: files of a Store are changed at once."""
        raise _no_transactions()

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **options: Any
    ) -> StoreFile:
        if not autocommit:
            raise _no_transactions()
        return StoreFile(self, path, mode, block_size or _BLOCK, **options)


def register() -> None:
    """Make ``zerohop://`` known to fsspec."""
    register_implementation(PROTOCOL, StoreFileSystem, clobber=True)


def _server_of(url: str) -> str:
    """Return the host and port of a URL; empty if it is a path."""
    return url[len(_SCHEME) :].partition("/")[0] if url.startswith(_SCHEME) else ""


def _no_transactions() -> NotImplementedError:
    return NotImplementedError("a Store has no transactions: write under another name, and mv() it at the end")


def _described(name: str, found: os.stat_result) -> dict[str, Any]:
    folder = stat.S_ISDIR(found.st_mode)
    return {
        "name": name,
        "size": 0 if folder else found.st_size,
        "type": "directory" if folder else "file" if stat.S_ISREG(found.st_mode) else "other",
        "mtime": found.st_mtime,
        "mode": found.st_mode,
    }
