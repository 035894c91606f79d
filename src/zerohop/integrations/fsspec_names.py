"""Declares StoreNames, the part of StoreFileSystem that looks up, makes and removes names."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from fsspec.asyn import AsyncFileSystem

from zerohop.errors import StorageError
from zerohop.integrations import fsspec_urls as urls
from zerohop.integrations.fsspec_files import as_python_errors, python_errors
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.storage import File, Store

# Errors of a link that leads nowhere, or out of the Store.
_NOWHERE: Final = (errno.ENOENT, errno.EXDEV, errno.ELOOP)


class StoreNames(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Looks up, makes and removes files and folders of one Store.

    Attributes:
        store: the Store.
        auto_mkdir: whether folders are made that a file's path names and that are not there.
    """

    store: Store
    auto_mkdir: bool

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the path in its Store."""
        return [urls.name_of(each) for each in path] if isinstance(path, list) else urls.name_of(path)

    def _own_name(self, path: Any) -> Any:
        """Return the path in this Store; raise ValueError for a URL of another server."""
        for each in path if isinstance(path, list) else [path]:
            server, _ = urls.split(str(each))
            if server and not (self.store.folder.startswith(urls.SCHEME) and urls.is_same(server, self.store.folder)):
                raise ValueError(f"{each} is a file of another server than {self.store.folder}")
        return type(self)._strip_protocol(path)  # noqa: SLF001  # a name of fsspec for subclasses; the object has another under it

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL by which fsspec finds a file; it begins with ``file://`` in a folder of this machine."""
        return urls.url_of(self.store.folder, self._strip_protocol(name))

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
    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **_: Any,
    ) -> None:
        del batch_size
        if recursive and maxdepth is not None:
            # Folders first in this order, so from its end: those that are not empty then have more below.
            for each in reversed(await self._expand_path(path, recursive=True, maxdepth=maxdepth)):
                await self._remove(each, recursive=False)
            return
        for each in await self._expand_path(path):
            await self._remove(each, recursive=recursive)

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
        if create_parents:
            await self._make_parents(name)
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

    async def _make_parents(self, name: str) -> None:
        """Make the folders that a path is in."""
        if "/" in name:
            await self._makedirs(name.rpartition("/")[0], exist_ok=True)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        with as_python_errors():
            self.store.rmdir(self._strip_protocol(path)).result()

    def modified(self, path: str) -> dt.datetime:
        """Return when a file was written last."""
        return dt.datetime.fromtimestamp(self.info(path)["mtime"], dt.timezone.utc)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        """Make an empty file, or empty one; with ``truncate=False`` set the times of what is there to now."""
        if truncate:
            super().touch(path, truncate, **options)
            return
        try:
            self.open(path, "xb", **options).close()
        except FileExistsError:
            with as_python_errors():
                self.store.utime(self._strip_protocol(path)).result()

    async def _opened(self, name: str) -> File:
        """Open a file to read it."""
        return await self.store.open(name)

    async def _opened_to_write(self, name: str, mode: str) -> File:
        """Make a file, or empty it; ``mode`` is ``"overwrite"`` or ``"create"``, as fsspec has it."""
        if mode not in ("overwrite", "create"):
            raise ValueError(f'mode is "overwrite" or "create", not {shown(mode)}')
        how: Any = "x" if mode == "create" else "w"
        try:
            return await self.store.open(name, how)
        except StorageError as error:
            if error.errno != errno.ENOENT or not self.auto_mkdir:
                raise
        await self._make_parents(name)
        return await self.store.open(name, how)


def _described(name: str, found: os.stat_result) -> dict[str, Any]:
    folder = stat.S_ISDIR(found.st_mode)
    return {
        "name": name,
        "size": 0 if folder else found.st_size,
        "type": "directory" if folder else "file" if stat.S_ISREG(found.st_mode) else "other",
        "mtime": found.st_mtime,
        "mode": found.st_mode,
    }
