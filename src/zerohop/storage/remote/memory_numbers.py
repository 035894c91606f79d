"""Declares MemoryNumbers, the numbers by which requests over a lane name memory of this side."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, NamedTuple

from zerohop.errors import ZerohopError
from zerohop.storage import wire

if TYPE_CHECKING:
    from zerohop._native import ServedNumber
    from zerohop.core.face import Memory
    from zerohop.storage.remote.moves import Moves


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
        self._numbers: weakref.WeakKeyDictionary[Memory, MemoryNumber | None] = weakref.WeakKeyDictionary()
        self._asking: set[asyncio.Task[None]] = set()

    def number(self, memory: Memory) -> MemoryNumber | None:
        """Return the number of a Memory; None if the server has not given it one. Any thread may call this."""
        return self._numbers.get(memory)

    def knows(self, memory: Memory) -> bool:
        """Tell whether the server was asked. Any thread may call this."""
        return memory in self._numbers

    def ask(self, memory: Memory, handle: bytes) -> None:
        """Ask for the number of a Memory, once. On the control thread."""
        if memory not in self._numbers and self._moves.asking is not None:
            self._numbers[memory] = None
            task = asyncio.get_running_loop().create_task(self._ask(memory, handle))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, memory: Memory, handle: bytes) -> None:
        try:
            answer, number = await self._moves.ask_placed(wire.Reach(handle), wire.Reached, "prepare", "")
        except (ZerohopError, ValueError):  # transfers that ask by messages tell of it
            return
        if number is not None:
            self._numbers[memory] = MemoryNumber(number, answer.how)
