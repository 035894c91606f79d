"""Holds what this process has of 3FS: Stores of local folders and of servers, descriptors, exported memory."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from zerohop.compat.hf3fs import log
from zerohop.compat.process import shared_context
from zerohop.storage import Store, open_store

if TYPE_CHECKING:
    import weakref

    from zerohop.core.face import Memory, View
    from zerohop.storage import File


class Registered(NamedTuple):
    """Holds the file of a registered descriptor, which stays open when the descriptor is closed."""

    file: File
    device: int
    inode: int
    readable: bool
    writable: bool


class State:
    """Holds the state of one process; a forked child has another.

    Attributes:
        lock: covers the others.
        registered: what each registered descriptor stands for.
        exported: memory that was exported, by the bytes of its handle.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.registered: dict[int, Registered] = {}
        self.exported: dict[bytes, weakref.ref[Memory | View]] = {}
        self._stores: dict[str, Store] = {}

    def store(self, url: str = "") -> Store:
        """Return the Store of a server, or of this machine, which opens at first use, on the process's Context.

        Raises:
            ValueError: a variable of the environment makes no sense.
            ZerohopError: as for ``open_store``.
        """
        log.begin()
        with self.lock:
            found = self._stores.get(url)
            if found is None:
                # All local folders are parts of one file system tree, and share one engine.
                found = self._stores[url] = open_store(url or "/", ctx=shared_context())
            return found

    def close(self) -> None:
        """Close the Stores, and forget everything."""
        with self.lock:
            self.registered.clear()
            self.exported.clear()
            stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()


_state = State()


def current() -> State:
    """Return this process's state."""
    return _state


def reset() -> None:
    """Begin anew; what there was stays with whoever still uses it."""
    global _state
    _state = State()


# In a forked child the Store, and a held lock, belong to threads of the parent.
os.register_at_fork(after_in_child=reset)
