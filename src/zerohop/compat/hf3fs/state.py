"""Holds what this process has of 3FS: the Store of its local folders, registered descriptors, exported memory."""

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
        self._store: Store | None = None

    def store(self) -> Store:
        """Return the Store, which opens at first use, on the process's Context, and closes at exit.

        Raises:
            ValueError: a variable of the environment makes no sense.
            ZerohopError: as for ``open_store``.
        """
        log.begin()
        with self.lock:
            if self._store is None:
                # All local folders are parts of one file system tree, and share one engine.
                self._store = open_store("/", ctx=shared_context())
            return self._store

    def close(self) -> None:
        """Close the Store, and forget everything."""
        with self.lock:
            self.registered.clear()
            self.exported.clear()
            store, self._store = self._store, None
        if store is not None:
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
