"""Lists the Registrations that live, whatever a signal handler raises while one of them goes away."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from zerohop.core.memory.registration import Registration

_FEW: Final = 64


class Living:
    """Holds weak references, which it looks at anew each time it has doubled. Thread-safe.

    A WeakSet forgets its members in a callback. Python drops what a signal handler raises there, and the rest of the
    callback with it, so that the member would count for ever.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Registration]] = {}
        self._room = _FEW

    def __len__(self) -> int:
        return len(self.all())

    def add(self, registration: Registration) -> None:
        """Add a Registration."""
        self._references[registration.number] = weakref.ref(registration)
        if len(self._references) > self._room:
            # A copy: a destructor that the garbage collector runs here, or another thread, may add to the table, and
            # a list of the pairs makes an object for each of them.
            for number, reference in self._references.copy().items():
                if reference() is None:
                    self._references.pop(number, None)
            self._room = 2 * len(self._references) + _FEW

    def all(self) -> list[Registration]:
        """Return those that live."""
        return [living for each in list(self._references.values()) if (living := each()) is not None]
