"""Declares DirectRing, the native half of a Ring of a Store or Context that was opened with ``require="direct"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.core.face import HOST
from zerohop.storage.direct import check_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.storage.file_engine import OpenFile
    from zerohop.storage.file_ring import FileRing


class DirectRing:
    """Refuses transfers that cannot be direct, and leaves everything else to another ring."""

    def __init__(self, ring: FileRing, device_of: Callable[[Any], str], *, of_host: bool, writes: bool) -> None:
        """Hold what is needed.

        Args:
            ring: carries out the transfers.
            device_of: returns the name of the device of a memory, as native code knows it.
            of_host: transfers with memory of the host must be direct, too.
            writes: files are written.
        """
        self._ring = ring
        self._device_of = device_of
        self._of_host = of_host
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
    ) -> int | None:
        """Do FileRing.prepare, with the open file in place of the native one.

        Raises:
            Unsupported: a transfer cannot be direct; none was added.
        """
        where = memory, part_offset, part_nbytes
        device = self._device_of(memory)
        if self._of_host or device != HOST:
            check_ranges("prepare", file, where, (offsets, at, lengths), writes=self._writes, device=device)
        return self._ring.prepare(file.native(), *where, offsets, at, lengths, *to)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)
