"""Has a call end as a signal handler that raises ends it, at a line that is counted and not left to chance."""

from __future__ import annotations

import ast
import dis
import functools
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


@functools.cache
def _withs(path: str) -> list[tuple[range, range]]:
    """The lines of each with statement of a file: those of its head, and those of its body."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith))]
    return [
        (range(node.lineno, node.body[0].lineno), range(node.body[0].lineno, (node.end_lineno or 0) + 1))
        for node in found
    ]


def _calls_no_handler(frame: FrameType) -> bool:
    """Tell whether a try statement begins here, or an except clause ends: Python calls no handler at either.

    What is raised there passes by the with statements around a try, or leaves the handled exception the thread's
    current one, with its traceback and all that this holds.
    """
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("NOP", "POP_EXCEPT")


class _Handler:
    """Raises before the line of this number."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.where = ""

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(_TRACED):
            return None
        # Before the first line of a destructor nothing of it can know that it was interrupted.
        if frame.f_code.co_name != "__del__":
            self._count(frame)
        before = 0

        def trace_lines(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            line = frame.f_lineno
            # Python calls no handler between the body of a with statement and the call that ends it.
            ends_with = any(line in head and before in body for head, body in _withs(path))
            before = line
            if event == "line" and frame.f_code.co_name != "__del__" and not ends_with:
                self._count(frame)
            return trace_lines

        return trace_lines

    def _count(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left <= 0 and not _calls_no_handler(frame):
            # Python does the same while a handler runs: it calls no other.
            sys.settrace(None)
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise Interrupted


def at_each_line(action: Callable[[], object], check: Callable[[], object], *, first: int = 1, stride: int = 1) -> None:
    """Interrupt an action before its first line of the library's Python, before its second, …; check after each.

    With `stride`, only each so manieth line is taken, from the one of number `first` on.
    """
    for step in range(first, _MANY, stride):
        handler, before = _Handler(step), sys.gettrace()
        sys.settrace(handler.trace)
        try:
            action()
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        try:
            check()
        except BaseException:
            print(f"interrupted before {handler.where}, line {step} of all")
            raise
        if handler.left > 0:
            assert step > first
            return
    raise AssertionError(f"more than {_MANY} lines")
