"""Declares Source, what is known of a range of memory before it is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zerohop.core.memory.layouts import BYTES

if TYPE_CHECKING:
    from zerohop._native import BlockWatch


class Moved(ValueError):
    """Says that an object, or the one that it is a view of, has other memory than it had a moment ago."""


class Source(NamedTuple):
    """Describes a range of memory, and the allocation that it is part of.

    The allocation is registered, and not the range, so that all slices of a tensor share one registration.
    """

    address: int
    nbytes: int
    device: str
    readonly: bool
    keep: object
    base: int
    extent: int
    # The object whose lifetime bounds a cached registration; None: a GPU's memory, or not cached.
    cached_by: object | None
    # Whether the pages may belong to a shared file, which is slow to find out.
    may_be_shared: bool
    # How the elements lie (layouts.py).
    layout: bytes = BYTES
    # Tells when the memory moves; None: it cannot.
    block: BlockWatch | None = None
    # Keeps the memory from moving until it is registered.
    hold: object = None

    @property
    def offset(self) -> int:
        """Return the offset of the range within its allocation."""
        return self.address - self.base


def whole_allocation(
    address: int, nbytes: int, device: str, readonly: bool, keep: object, owner: object | None, *, may_be_shared: bool
) -> Source:
    """Return the Source of a range that is a whole allocation."""
    return Source(address, nbytes, device, readonly, keep, address, nbytes, owner, may_be_shared)
