"""Starts threads of Python where there may be too little memory for one."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from zerohop.errors import of_sandbox, too_many_threads

if TYPE_CHECKING:
    from collections.abc import Callable

# More than a thread maps for its first frames, when its stack is there.
_FIRST_FRAMES: Final = 1 << 20
# Seconds in which a thread begins, however busy the machine is.
_BEGINNING_S: Final = 10.0


class _Beginning(threading.Event):
    """Ends the wait for a thread that never begins."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(_BEGINNING_S if timeout is None else timeout):
            raise RuntimeError("the thread does not begin")
        return True


class Thread(threading.Thread):
    """Is a thread that the interpreter does not wait for at its end, and whose start cannot last for ever."""

    def __init__(self, target: Callable[..., object], *args: Any, name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        # In place of the standard library's own event, for which Thread.start() waits.
        self._started = _Beginning()

    def begin(self, operation: str = "") -> None:
        """Start the thread.

        Raises:
            LimitReached: there is no room for it.
            Unsupported: a sandbox refuses it memory.
        """
        # A thread without memory for its first frame ends without a word. So there must be some; and since another
        # thread may take it meanwhile, the wait has an end, too.
        try:
            mmap.mmap(-1, _FIRST_FRAMES).close()
            self.start()
        except RuntimeError:
            threading._limbo.pop(self, None)  # type: ignore[attr-defined] # else enumerate() lists it for ever
            raise of_sandbox(_refusal(), "clone", operation=operation) or too_many_threads(operation) from None
        except OSError as error:
            raise of_sandbox(error, "mmap", operation=operation) or too_many_threads(operation) from None


def _refusal() -> OSError:
    """Return the error with which the system refuses a thread just now; of that, ``threading`` says nothing."""
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    error = libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.getpid, ctypes.c_void_p), None)
    if error == 0:
        libc.pthread_detach(thread)
    return OSError(error, os.strerror(error))
