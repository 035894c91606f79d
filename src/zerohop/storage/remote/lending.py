"""Lends memory of a RemoteStore's Context to its server, for as long as the server moves bytes."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from zerohop.core.face import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import RemoteBuffer, Rights, View
    from zerohop.storage.remote.memory_numbers import MemoryNumber


class Lent:
    """Holds memory that the server reaches, until the last transfer that uses it has released it. Thread-safe.

    Attributes:
        view: the memory.
        handle: bytes of the handle.
        start: offset of ``view`` in what the handle names.
        number: its number in requests over the lane; None if it has none.
    """

    number: MemoryNumber | None = None

    def __init__(self, view: Memory | View, handle: bytes, start: int, give_back: Callable[[], None] | None) -> None:
        self.view = view
        self.handle = handle
        self.start = start
        self._give_back = give_back
        self._users = 1
        self._lock = threading.Lock()

    @property
    def is_once(self) -> bool:
        """Tell whether the handle is for one transfer, and not for all of the memory's."""
        return self._give_back is not None

    def hold(self) -> None:
        """Count one more transfer."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Count one less; the last gives the memory back."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last and self._give_back is not None:
            self._give_back()


class Lending:
    """Makes the handles. Thread-safe.

    A Memory has one handle for all transfers, as long as it is open. An array that was passed as it is has one for each
    transfer, because a handle keeps its memory alive.
    """

    def __init__(self) -> None:
        # Memory that stands for an array for the length of a call.
        self._passing: weakref.WeakSet[Memory | View] = weakref.WeakSet()

    def note_array(self, memory: Memory | View) -> None:
        """Note that memory stands for an array."""
        self._passing.add(memory)

    def note_kept(self, memory: Memory | View) -> None:
        """Note that memory stays, also if it stood for an array before."""
        if isinstance(memory, Memory):  # a View never stands for an array
            self._passing.discard(memory)

    def lent(
        self,
        lend: Callable[..., tuple[RemoteBuffer, int]],
        take_back: Callable[[Memory | View, RemoteBuffer], None],
        view: Memory | View,
        *,
        writes: bool,
    ) -> Lent:
        """Lend memory to be read by the server, if it writes a file, or else to be written to.

        ``lend`` and ``take_back`` are those of Face.

        Raises:
            ValueError: the memory does not have such rights.
            Closed: it is closed.
        """
        once = view in self._passing
        rights: Rights = "r" if writes else "w"
        if not once and not view.readonly:
            rights = "rw"
        handle, start = lend(view, rights, once=once)
        return Lent(view, bytes(handle), start, (lambda: take_back(view, handle)) if once else None)
