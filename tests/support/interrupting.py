"""Has a call end as a signal handler that raises ends it, at a line that is counted and not left to chance."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import zerohop as zh

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_MANY: Final = 5000
# The containers of weak references forget in Python, too, what is gone.
_TRACED: Final = (str(Path(zh.__file__).parent), weakref.__file__, weakref.WeakSet.__init__.__code__.co_filename)


class Interrupted(BaseException):
    """Raised by the handler."""


class _Handler:
    """Raises before the line of this number."""

    def __init__(self, step: int) -> None:
        self.left = step

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_TRACED):
            return None
        # Before the first line of a destructor nothing of it can know that it was interrupted.
        if event in ("call", "line") and frame.f_code.co_name != "__del__":
            self.left -= 1
            if self.left == 0:
                # Python does the same while a handler runs: it calls no other.
                sys.settrace(None)
                raise Interrupted
        return self.trace


def at_each_line(action: Callable[[], object], check: Callable[[], object]) -> None:
    """Interrupt an action before its first line of the library's Python, before its second, …; check after each."""
    for step in range(1, _MANY):
        handler, before = _Handler(step), sys.gettrace()
        sys.settrace(handler.trace)
        try:
            action()
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        check()
        if handler.left > 0:
            assert step > 1
            return
    raise AssertionError(f"more than {_MANY} lines")
