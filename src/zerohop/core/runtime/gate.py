"""Bounds how many operations prepare their first use of a peer's memory at the same time. On the control thread.

Thousands of handles of a peer may be used for the first time at once. Each that is prepared has a task with all that it
refers to; one that waits at the gate has next to nothing, and the interpreter's collector none of that to walk over.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# More than two requests to the peer name, so that the next request is full when the one before has been answered.
_MOST: Final = 288


class Gate:
    """Lets a bounded number of operations in at a time, in the order in which they came."""

    __slots__ = ("__weakref__", "_inside", "_waiting")

    def __init__(self) -> None:
        self._inside = 0
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def enter(self, begin: Callable[..., object], *args: Any) -> None:
        """Call ``begin`` as soon as there is room; whoever has entered calls ``leave`` once."""
        if self._inside < _MOST:
            self._inside += 1
            begin(*args)
        else:
            self._waiting.append((begin, args))

    def leave(self) -> None:
        """Let the next one in."""
        if self._waiting:
            begin, args = self._waiting.popleft()
            begin(*args)
        else:
            self._inside -= 1
