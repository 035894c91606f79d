"""Declares what a store must have, and two stores: a folder, and values that all ranks have exchanged already."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable
from urllib.parse import quote
from weakref import WeakKeyDictionary

from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

# A folder has no event to wait for if another host may write to it. Seconds between two looks: at first, and at most.
_FIRST_LOOK_S: Final = 0.001
_LAST_LOOK_S: Final = 0.05
# Keys are names of files and names within PMIx, whose length is limited.
_LONGEST_NAME: Final = 128
# How many Groups of each name and rank this process has made over a store: their keys have that number.
_made: Final[WeakKeyDictionary[Any, dict[tuple[str, int], int]]] = WeakKeyDictionary()


@runtime_checkable
class Store(Protocol):
    """Names the methods that a store must have, with their meaning in torch's TCPStore and FileStore.

    All ranks reach the same keys and values. A Group calls the methods on threads of its own, one at a time. If there
    is ``check(keys)``, which tells at once whether all keys are there, it is called instead of ``wait``.
    """

    def set(self, key: str, value: bytes, /) -> object:
        """Store a value under a key."""

    def get(self, key: str, /) -> bytes | str:
        """Return the value of a key that is there."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Return once all keys are there; raise any error when the time has passed, and not before."""


class FolderStore:
    """Keeps each value in a file of a folder that all ranks reach, on one host or on a file system of several.

    Every run needs a folder of its own: what an earlier run has left there would be taken for this one's.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Use a folder, and make it if there is none.

        Raises:
            OSError: there is no such folder, and it cannot be made.
        """
        self.folder: Final = Path(folder)
        self._last_set = ""
        self.folder.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: bytes) -> None:
        """Store a value under a key, at once and as a whole.

        Raises:
            FileExistsError: the key is there already.
            OSError: the folder refuses.
        """
        path = self.folder / f".{os.urandom(8).hex()}"
        try:
            path.write_bytes(value)
            os.link(path, self._path(key))
            self._last_set = key
        finally:
            path.unlink(missing_ok=True)

    def has_what_it_set(self) -> bool:
        """Tell whether this is the folder into which this object has written, if it has, and no new one at its path."""
        return not self._last_set or self.check([self._last_set])

    def get(self, key: str) -> bytes:
        """Return the value of a key.

        Raises:
            FileNotFoundError: the key is not there.
        """
        return self._path(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all keys are there."""
        return all(self._path(key).exists() for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all keys are there.

        Raises:
            TimeoutError: the time has passed.
        """
        until, pause = time.monotonic() + timeout.total_seconds(), _FIRST_LOOK_S
        while not self.check(keys):
            if time.monotonic() >= until:
                raise TimeoutError(f"{self.folder} does not have all of {', '.join(keys)}")
            time.sleep(pause)  # another host may write to the folder, and no event tells of that
            pause = min(2 * pause, _LAST_LOOK_S)

    def _path(self, key: str) -> Path:
        return self.folder / f"{quote(key, safe='')}.value"


def folder_store(folder: str | os.PathLike[str]) -> FolderStore:
    """Return the store of a folder, the same one for all Groups of this process: they count how many of them use it.

    A folder that was removed and made again is another one.

    Raises:
        ValueError: the path is empty.
        OSError: there is no such folder, and it cannot be made.
    """
    if not os.fspath(folder):
        raise ValueError("store is an empty path; pass a folder that all ranks reach")
    made = FolderStore(Path(folder).resolve())
    known = _folder_stores.get(made.folder)
    if known is not None and known.has_what_it_set():
        return known
    _folder_stores[made.folder] = made
    return made


_folder_stores: Final[dict[Path, FolderStore]] = {}


class Exchanged:
    """Serves values that all ranks have exchanged before, as the store of a communicator, which has none."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        self._values = dict(values)

    def set(self, key: str, value: bytes) -> None:
        """Store a value for this rank alone."""
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """Return the value of a key; raise KeyError if it was not exchanged."""
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all keys were exchanged."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Raise TimeoutError if a key was not exchanged. It will not come later."""
        if not self.check(keys):
            raise TimeoutError(f"not exchanged, within {timeout} or ever: {', '.join(keys)}")


def allgather_of(store: Any, rank: int, size: int) -> Callable[[str], list[str]] | None:
    """Return how a communicator of mpi4py exchanges values; None if the store is another one.

    Raises:
        ValueError: the rank or the size of the communicator is another.
    """
    if isinstance(store, Store) or not (hasattr(store, "allgather") and hasattr(store, "Get_rank")):
        return None
    there = store.Get_rank(), store.Get_size()
    if there != (rank, size):
        raise ValueError(f"this is rank {rank} of {size}, and the communicator says rank {there[0]} of {there[1]}")
    exchange: Callable[[str], list[str]] = store.allgather
    return exchange


def store_of(store: Any) -> Store:
    """Return the store that an argument names: itself, or the folder at a path."""
    if isinstance(store, (str, os.PathLike)):
        return folder_store(store)
    if isinstance(store, Store):
        return store
    raise TypeError(
        "store is an object with set, get and wait, such as torch's TCPStore; a folder; or a communicator of mpi4py; "
        f"not {type(store).__name__}"
    )


def counts_of(store: Store) -> dict[tuple[str, int], int]:
    """Return how many Groups of each name and rank this process has made over a store."""
    try:
        return _made.setdefault(store, {})
    except TypeError as error:
        raise TypeError(f"a store must be hashable and allow weak references: {error}") from None


def prefix_of(name: str) -> str:
    """Return what the keys of the groups of a name begin with; raise TypeError or ValueError if it is no name."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise ValueError(f"name has characters that cannot be encoded: {shown(name)}") from None
    if len(quoted) > _LONGEST_NAME:
        raise ValueError(
            f"name must have {_LONGEST_NAME} characters at most, with %XX for special ones, not {len(quoted)}"
        )
    return f"zerohop/{quoted}"
