"""Starts threads of Python where there may be too little memory for one."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from zerohop.errors import of_sandbox, too_many_threads

if TYPE_CHECKING:
    import threading

# More than a thread maps for its first frames, when its stack is there.
_FIRST_FRAMES: Final = 1 << 20


def start(thread: threading.Thread, operation: str = "") -> None:
    """Start a thread.

    Raises:
        LimitReached: there is no room for it.
        Unsupported: a sandbox refuses it memory.
    """
    try:
        # A thread without memory for its first frame ends without a word, and Thread.start() waits for it for ever.
        mmap.mmap(-1, _FIRST_FRAMES).close()
        thread.start()
    except RuntimeError:
        raise too_many_threads(operation) from None
    except OSError as error:
        raise of_sandbox(error, "mmap", operation=operation) or too_many_threads(operation) from None
