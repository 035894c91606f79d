"""Offers Stores as a file system of fsspec: ``zerohop://HOST:PORT/path`` on a server, or a folder of this machine.

``register()`` makes the name known to fsspec; then ``fsspec.open("zerohop://10.0.0.7:7000/weights.bin")`` reads from
that server, and so do the libraries that take URLs of fsspec.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from fsspec import register_implementation

from zerohop.config.checks import check_flag
from zerohop.integrations import fsspec_urls as urls
from zerohop.integrations.fsspec_copies import StoreCopies
from zerohop.integrations.fsspec_files import StoreFile, python_errors
from zerohop.storage import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from zerohop.storage import Store

_BLOCK: Final = 5 << 20
# Those of fsspec; it takes any others, too, and leaves them aside in silence.
_OPTIONS: Final = (
    "asynchronous",
    "loop",
    "batch_size",
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
)


class StoreFileSystem(StoreCopies):
    """Reads and writes the files of one Store. Paths count from its folder.

    ``cat_ranges`` reads all ranges of a file as one operation. A StorageError becomes the OSError of its number,
    such as FileNotFoundError.
    """

    protocol = urls.PROTOCOL
    root_marker = ""

    def __init__(
        self,
        where: str | os.PathLike[str] = "",
        *,
        store: Store | None = None,
        store_options: Mapping[str, Any] | None = None,
        auto_mkdir: bool = True,
        **options: Any,
    ) -> None:
        """Open a folder, or the URL of a server; or take a Store, which stays the caller's.

        Args:
            where: as for ``open_store``.
            store: a Store that is open.
            store_options: further arguments of ``open_store``, such as ``{"secret": ...}``.
            auto_mkdir: whether folders are made that the path of a file names that is written, and that are not there.
                What is copied, within the Store or into it, has them made in any case.
            options: those of AsyncFileSystem, ``asynchronous``, ``loop`` and ``batch_size``.

        Raises:
            ValueError, TypeError: an argument makes no sense.
            StorageError, PeerLost, ...: as for ``open_store``.
        """
        check_flag("auto_mkdir", auto_mkdir)
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(
                    f"StoreFileSystem has no option {name!r}: what open_store takes goes into "
                    f'store_options={{"{name}": ...}}'
                )
        super().__init__(**options)
        if store is None and not where:
            raise ValueError(f'name the folder or the server: StoreFileSystem("/data"), or {urls.SCHEME}HOST:PORT/path')
        # fsspec calls it of the class, and of an object, which knows whose paths it has.
        self._strip_protocol = self._own_name  # type: ignore[method-assign]  # fsspec calls it as a method; each server has names of its own
        self.auto_mkdir = auto_mkdir
        self._opened_here = store is None
        self.store: Store = open_store(where, **(store_options or {})) if store is None else store

    def close(self) -> None:
        """Close the Store that was opened here."""
        if self._opened_here:
            self.clear_instance_cache()  # fsspec would give this one out again
            self.store.close()

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, str]:
        """Return the server that a URL names."""
        server, _ = urls.split(str(path))
        return {"where": server} if server else {}

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
        with await self._opened(path) as file:
            size = file.size
            places = [slice(start, end).indices(size)[:2] for start, end in ranges]
            offsets = np.array([start for start, _ in places], np.int64)
            lengths = np.array([max(0, end - start) for start, end in places], np.int64)
            into = np.cumsum(lengths) - lengths
            room = np.empty(int(lengths.sum()), np.uint8)
            if room.size:
                real = lengths > 0
                await file.read_many(room, offsets[real], lengths[real], into[real])
        return [room[at : at + length].tobytes() for at, length in zip(into.tolist(), lengths.tolist(), strict=True)]

    @python_errors
    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        content = np.frombuffer(value, np.uint8)  # raises before the file is emptied
        with await self._opened_to_write(self._strip_protocol(path), mode) as file:
            if content.size:
                await file.write_from(content)

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
    register_implementation(urls.PROTOCOL, StoreFileSystem, clobber=True)


def _no_transactions() -> NotImplementedError:
    """Return the error by which fsspec's file systems refuse what they do not have."""
    return NotImplementedError("a Store has no transactions: write under another name, and mv() it at the end")
