"""Declares DirectRing, the native half of a Ring in a Store that was opened with ``require="direct"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.storage.direct import check_ranges

if TYPE_CHECKING:
    from zerohop.storage.file_engine import OpenFile
    from zerohop.storage.file_ring import FileRing


class DirectRing:
    """Refuses transfers that cannot go past the page cache, and leaves everything else to another ring."""

    def __init__(self, ring: FileRing, *, writes: bool) -> None:
        """Take the ring that carries out the transfers; ``writes``: files are written."""
        self._ring = ring
        self._writes = writes

    def prepare(
        self,
        file: OpenFile,
        memory: Any,
        part_offset: int,
        part_nbytes: int,
        offsets: Any,
        at: Any,
        lengths: Any,
        *to: Any,
    ) -> bool:
        """Do FileRing.prepare, with the open file in place of the native one.

        Raises:
            Unsupported: a transfer cannot be direct; none was added.
        """
        where = memory, part_offset, part_nbytes
        check_ranges("prepare", file, where, (offsets, at, lengths), writes=self._writes)
        return self._ring.prepare(file.native(), *where, offsets, at, lengths, *to)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)
