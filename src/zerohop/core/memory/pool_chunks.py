"""Declares the allocations of a Pool, and the blocks of them that are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.core.memory.free_ranges import FreeRanges

if TYPE_CHECKING:
    import collections

    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.retention import Retention


class Chunk:
    """Holds an allocation of a Pool."""

    __slots__ = ("_given_up", "_retention", "blocks", "ranges", "registration", "wanted")

    def __init__(self, retention: Retention, registration: Registration) -> None:
        self._retention = retention
        self.registration = registration
        self.ranges = FreeRanges(registration.nbytes)
        # The start and length of each block in use, by its id.
        self.blocks: dict[int, tuple[int, int]] = {}
        self._given_up: list[Registration] = []
        # Whether returned parts are to be used again.
        self.wanted = True

    def give_up(self) -> None:
        """Return the chunk to the device, now or with its last block."""
        self.wanted = False
        self._given_up.append(self.registration)
        self.release_if_unused()

    def release_if_unused(self) -> None:
        """Release the chunk if it was given up and has no block. Destructors call this: no lock, no wait."""
        if not self.blocks:
            try:
                registration = self._given_up.pop()
            except IndexError:
                return
            self._retention.release(registration)


# A range of a chunk: the chunk, the start and the length.
Range = tuple[Chunk, int, int]


class Block:
    """Keeps a part in use: its Memory has the block, and then everything that still uses the memory."""

    __slots__ = ("_freed", "_range")

    def __init__(self, taken: Range, freed: collections.deque[Range]) -> None:
        self._freed = freed
        self._range = taken
        taken[0].blocks[id(self)] = taken[1:]

    def goes_to(self, freed: object) -> bool:
        """Tell whether the block's range goes to this queue when the block is dropped."""
        return self._freed is freed

    def __del__(self) -> None:
        if not hasattr(self, "_range"):  # the constructor has raised; the pool takes stock anew
            return
        chunk = self._range[0]
        if chunk.wanted:
            self._freed.append(self._range)
        chunk.blocks.pop(id(self), None)
        chunk.release_if_unused()
