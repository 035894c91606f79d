"""Declares MemoryNumbers, the numbers by which requests over a lane name memory of this side."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from zerohop.errors import ZerohopError
from zerohop.storage import wire

if TYPE_CHECKING:
    from zerohop._native import ServedNumber
    from zerohop.core.face import Memory
    from zerohop.storage.remote.moves import Moves


# Handles of a Memory whose numbers are kept.
_MOST_HANDLES: Final = 4
_NONE: Final[dict[bytes, MemoryNumber | None]] = {}


class MemoryNumber(NamedTuple):
    """Holds the number of a Memory.

    Attributes:
        number: the number.
        how: the way in which the server reaches the memory, as in wire.Moved.
    """

    number: ServedNumber
    how: str


class MemoryNumbers:
    """Asks the server for a number of each Memory that transfers use. Until it has answered, messages ask for them."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        # A number is given back when the last transfer that uses it has ended, and its Memory is gone.
        # A Memory has one for each handle: handles differ in their rights, and a new one follows one that was revoked.
        self._numbers: weakref.WeakKeyDictionary[Memory, dict[bytes, MemoryNumber | None]]
        self._numbers = weakref.WeakKeyDictionary()
        self._asking: set[asyncio.Task[None]] = set()

    def number(self, memory: Memory, handle: bytes) -> MemoryNumber | None:
        """Return the number of a handle of a Memory; None if the server has not given one. Any thread may call this."""
        return self._numbers.get(memory, _NONE).get(handle)

    def asks_for(self, memory: Memory, handle: bytes) -> bool:
        """Tell whether the server is to be asked for the number. Any thread may call this."""
        return self._moves.asking is not None and handle not in self._numbers.get(memory, _NONE)

    def ask(self, memory: Memory, handle: bytes) -> None:
        """Ask for the number of a handle, once. On the control thread."""
        if self.asks_for(memory, handle):
            numbers = self._numbers.setdefault(memory, {})
            if len(numbers) >= _MOST_HANDLES:  # of handles that were revoked
                numbers.clear()
            numbers[handle] = None
            task = asyncio.get_running_loop().create_task(self._ask(memory, handle))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, memory: Memory, handle: bytes) -> None:
        try:
            answer, number = await self._moves.ask_numbered(wire.Reach(handle), wire.Reached, "prepare", "")
        except (ZerohopError, ValueError):  # transfers that ask by messages tell of it
            return
        if number is not None:
            self._numbers.setdefault(memory, {})[handle] = MemoryNumber(number, answer.how)
