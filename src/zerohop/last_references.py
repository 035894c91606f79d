"""Letting go of objects whose memory GPUs know, on a thread that may wait for them.

Host memory that goes has to be unregistered first, and the driver does that only when nothing is queued on any stream
of the process. A stream may be waiting for what the thread would do next that happens to hold the last reference.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Final

# Whoever puts something there still refers to it, for as long as a call takes to return; who comes last waits.
_GRACE_S: Final = 0.002


class LastReferences:
    """Those of one Context. Its thread is there from the first `start` on, until `close`."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        # Destructors may put into it.
        self._things: queue.SimpleQueue[list[object]] = queue.SimpleQueue()

    def start(self) -> None:
        """From now on there may be something to drop. Any thread, but no destructor."""
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=_work, args=(self._things,), name="zerohop-drop", daemon=True)
                self._thread.start()

    def drop(self, thing: object) -> None:
        """Soon; the caller's own references go first, then. Destructors may call it."""
        if self._thread is not None:
            self._things.put([thing])

    def close(self) -> None:
        """End the thread, once it is through."""
        with self._starting:
            self._closed = True
            if self._thread is not None:
                self._things.put([])


def _work(things: queue.SimpleQueue[list[object]]) -> None:
    open_ = True
    while open_:
        all_ = [things.get()]
        while not things.empty():
            all_.append(things.get())
        time.sleep(_GRACE_S)
        open_ = all(all_)
        for last in all_:
            last.clear()
