"""Letting go of what keeps memory alive that GPUs know, on a thread that may wait for them.

Host memory that goes has to be unregistered first, and the driver does that only when nothing is queued on any stream
of the process. A stream may be waiting for what the thread would do next that happens to hold the last reference.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .registration import Registration


class Keeper(Protocol):
    """What refers to such an object, and says of which memory. Who lets go of the object clears ``keep``."""

    keep: object
    registration: Registration


class LastReferences:
    """Those of one Context. Its thread is there from the first `start` on, until `close`."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        # Destructors may put into it. None: it was the last.
        self._keepers: queue.SimpleQueue[Keeper | None] = queue.SimpleQueue()

    def start(self) -> None:
        """From now on there may be something to drop. Any thread, but no destructor."""
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=_work, args=(self._keepers,), name="zerohop-drop", daemon=True)
                self._thread.start()

    def drop(self, keeper: Keeper) -> None:
        """Let go of what it keeps: soon; at once where no device knows the memory. Destructors may call it."""
        if keeper.registration.region.known_to_devices and self._thread is not None:
            self._keepers.put(keeper)
        else:
            keeper.keep = None

    def close(self) -> None:
        """End the thread, once it is through."""
        with self._starting:
            self._closed = True
            if self._thread is not None:
                self._keepers.put(None)


def _work(keepers: queue.SimpleQueue[Keeper | None]) -> None:
    while (keeper := keepers.get()) is not None:
        keeper.keep = None
        del keeper  # and not with the next one
