"""Declares StoreCopies, the part of StoreFileSystem that copies and renames files and folders."""

from __future__ import annotations

import errno
import os
import shutil
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from fsspec.asyn import sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.utils import isfilelike, other_paths, stringify_path

from zerohop.errors import StorageError
from zerohop.integrations.fsspec_files import python_errors
from zerohop.integrations.fsspec_names import StoreNames

if TYPE_CHECKING:
    from zerohop.storage import File

_PIECE: Final = 16 << 20


class StoreCopies(StoreNames):
    """Copies files within one Store, to this machine and from it."""

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Rename a file or a folder; into ``path2``, if that is a folder or ends with a slash.

        Several paths, or a pattern, are copied and then removed, as fsspec does it.
        """
        one = isinstance(path1, str) and isinstance(path2, str) and maxdepth is None
        if one and not has_magic(self._strip_protocol(path1)):
            sync(self.loop, self._rename, path1, path2)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    @python_errors
    async def _rename(self, path1: str, path2: str) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if not target or path2.endswith("/") or await self._isdir(target):
            target = f"{target}/{source.rpartition('/')[2]}".lstrip("/")
        await self._move(source, target)

    @python_errors
    async def _mv_file(self, path1: str, path2: str, **_: Any) -> None:
        await self._move(self._strip_protocol(path1), self._strip_protocol(path2))

    async def _move(self, source: str, target: str) -> None:
        """Rename a file or a folder; make the folders above the target if they are not there."""
        try:
            await self.store.rename(source, target)
        except StorageError as error:
            if error.errno != errno.ENOENT or not self.auto_mkdir or not await self._exists(source):
                raise
        else:
            return
        await self._make_parents(target)
        await self.store.rename(source, target)

    async def _copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        on_error: str | None = None,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Do fsspec's copy(), with names that have no slash in front."""
        if on_error is None:
            on_error = "ignore" if recursive else "raise"
        path1, path2 = stringify_path(path1), stringify_path(path2)
        if not (isinstance(path1, list) and isinstance(path2, list)):
            into = isinstance(path2, str) and (path2.endswith("/") or await self._isdir(path2))
            path2 = self._strip_protocol(path2)
            path1, path2 = await self._pairs(path1, path2, recursive=recursive, maxdepth=maxdepth, into=into)
        await super()._copy(path1, path2, recursive=recursive, on_error=on_error, **options)

    async def _get(
        self, rpath: Any, lpath: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> Any:
        """Do fsspec's get(), with names that have no slash in front."""
        rpath, lpath = stringify_path(rpath), make_path_posix(lpath)
        if not (isinstance(rpath, list) and isinstance(lpath, list)):
            into = isinstance(lpath, str) and (lpath.endswith("/") or LocalFileSystem().isdir(lpath))
            rpath, lpath = await self._pairs(rpath, lpath, recursive=recursive, maxdepth=maxdepth, into=into)
        return await super()._get(rpath, lpath, **options)

    async def _pairs(
        self, sources: Any, target: Any, *, recursive: bool, maxdepth: int | None, into: bool
    ) -> tuple[list[str], list[str]]:
        """Return the names that sources stand for, and for each the place that it is copied to, by fsspec's rules.

        Args:
            sources: a path, a pattern, or several.
            target: a path, or one for each source.
            recursive: whether folders are copied with what is in them.
            maxdepth: how many floors of them; None: all.
            into: whether the target is a folder that the sources are put into.
        """
        one = isinstance(sources, str)
        names = await self._expand_path(sources, recursive=recursive, maxdepth=maxdepth)
        if one and (not recursive or maxdepth is not None):
            names = [name for name in names if not await self._isdir(name)]
            if not names:
                return [], []
        if one and has_magic(self._strip_protocol(sources)):
            into = len(names) == 1
        elif one:
            into = into and not sources.endswith("/")
        # fsspec takes a name without a slash for a folder that is to be replaced.
        return names, other_paths([f"/{name}" for name in names], target, exists=one and into, flatten=not one)

    @python_errors
    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file, or make a folder like the one that is named: fsspec names each, in no order."""
        name, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if await self._isdir(name):
            await self._makedirs(target, exist_ok=True)
            return
        with await self._opened(name) as source:
            size = source.size
            await self._check_another(source, target)
            await self._make_parents(target)
            with await self._opened_to_write(target, "overwrite") as copy:
                for at in range(0, size, _PIECE):
                    room = np.empty(min(_PIECE, size - at), np.uint8)
                    await source.read_into(room, at)
                    await copy.write_from(room, at)

    @python_errors
    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        """Copy a file of the Store to one of this machine, or make a folder like the one that is named."""
        name = self._strip_protocol(rpath)
        if isfilelike(lpath):
            await self._fill(name, lpath, callback)
            return
        if await self._isdir(name):
            Path(lpath).mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  # a call on this machine, and short
            return
        # The source first: if there is none, the target stays as it is.
        with await self._opened(name) as source:
            Path(lpath).parent.mkdir(parents=True, exist_ok=True)  # as above
            with open(lpath, "wb") as target:  # noqa: ASYNC230,PTH123  # a local path, of any kind that open() takes
                await _copy_out(source, target, callback)

    async def _fill(self, name: str, target: Any, callback: Any) -> None:
        with await self._opened(name) as source:
            await _copy_out(source, target, callback)

    @python_errors
    async def _put_file(
        self, lpath: Any, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **_: Any
    ) -> None:
        """Copy a file of this machine into the Store, or make a folder like the one that is named."""
        name = self._strip_protocol(rpath)
        if Path(lpath).is_dir():  # noqa: ASYNC240  # a call on this machine, and short
            await self._makedirs(name, exist_ok=True)
            return
        # The source first, as above.
        with open(lpath, "rb") as source:  # noqa: ASYNC230,PTH123  # a local path, of any kind that open() takes
            callback.set_size(os.fstat(source.fileno()).st_size)
            await self._make_parents(name)
            with await self._opened_to_write(name, mode) as target:
                at = 0
                while part := source.read(_PIECE):
                    await target.write_from(np.frombuffer(part, np.uint8), at)
                    at += len(part)
                    callback.relative_update(len(part))

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


async def _copy_out(source: File, target: Any, callback: Any) -> None:
    """Write all bytes of a file to one of this machine."""
    size = source.size
    callback.set_size(size)
    for at in range(0, size, _PIECE):
        room = np.empty(min(_PIECE, size - at), np.uint8)
        await source.read_into(room, at)
        target.write(room.data)
        callback.relative_update(room.size)
