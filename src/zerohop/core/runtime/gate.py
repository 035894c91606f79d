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
# Operations that are let in before the control thread's loop does something else.
_A_TURN: Final = 64


class Gate:
    """Lets a bounded number of operations in at a time, in the order in which they came."""

    __slots__ = ("__weakref__", "_admitting", "_inside", "_waiting")

    def __init__(self) -> None:
        self._inside = 0
        self._admitting = False
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def enter(self, begin: Callable[..., object], *args: Any) -> None:
        """Call ``begin`` as soon as there is room; whoever has entered calls ``leave`` once."""
        self._waiting.append((begin, args))
        self._admit()

    def leave(self) -> None:
        """Let the next one in."""
        self._inside -= 1
        self._admit()

    def _admit(self) -> None:
        if not self._admitting:  # one that is let in may leave at once
            self._admitting = True
            self._admit_some()

    def _admit_some(self) -> None:
        go_on, failure = False, None
        try:
            for _ in range(_A_TURN):
                if not self._waiting or self._inside >= _MOST:
                    break
                begin, args = self._waiting.popleft()
                self._inside += 1
                try:
                    begin(*args)
                except BaseException as error:  # noqa: BLE001 - it is raised below; the others must not wait for that
                    failure = error
            else:
                # Imported here because `import zerohop` alone needs none of it.
                import asyncio

                asyncio.get_running_loop().call_soon(self._admit_some)
                go_on = True
        finally:
            self._admitting = go_on
        if failure is not None:
            raise failure
