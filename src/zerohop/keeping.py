"""What Memories keep alive, until nothing can touch it any more: no operation, no peer, no device.

What devices know must not go before they have forgotten it, and that the owner of an array is gone is told too late for
that: numpy (from 2.5 on) and mmap free their memory before they tell weak references. So it is kept until then.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Final

from .errors import Closed
from .registration import Parting, Registration

if TYPE_CHECKING:
    from collections.abc import Callable

# How long devices still know host memory once nothing here refers to it: a program may come back with the same array in
# each step, and to pin and unpin pages takes longer than most transfers.
_LINGER_S: Final = 1.0


class Keeping:
    """That of one Context. Thread-safe; nothing that a destructor calls takes a lock."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` has drain() called again soon, for as long as that finds something that waits for operations."""
        self._wake = wake
        # What peers or hardware still use, and the object that must stay until they do not. Each stays in here until it
        # is let go of, so that whoever looks for it finds it.
        self._pinned: set[Parting] = set()
        # What Memories that are being closed keep, until it is in `_pinned` where it has to be.
        self._parting: set[Parting] = set()
        self._examining: set[object] = set()
        self._ending = threading.Lock()
        self._turns = itertools.count(1)
        # What each open Memory, by its id, keeps alive, and of which registration it is. Here, so that closing the
        # Context lets go of all of it; in two, so that a Memory costs no object more.
        self._keeps: dict[int, object] = {}
        self._used_by: dict[int, Registration] = {}

    @property
    def pinned(self) -> int:
        """Number of regions that are closed and still in use."""
        return len(self._pinned)

    def release(self, registration: Registration, *, now: bool = False) -> None:
        """Close its region as soon as nothing uses it.

        Called by destructors, so on any thread at any moment: no lock, and no wait, unless the memory goes ``now``,
        whatever devices know of it: they are waited for.
        """
        self._release(Parting(registration, None, owned=True), now=now)

    def keep(self, memory: object, registration: Registration, keep: object) -> None:
        """``keep`` stays alive until ``let_go_of(memory)``, which a destructor may call."""
        key = id(memory)
        self._used_by[key] = registration
        self._keeps[key] = keep

    def kept_for(self, memory: object) -> object:
        """What that is."""
        try:
            return self._keeps[id(memory)]
        except KeyError:
            raise Closed("this Memory was closed", fix="register the memory again") from None

    def kept_by(self, memory: object) -> object:
        """The same; None once it is closed."""
        return self._keeps.get(id(memory))

    @property
    def examining(self) -> bool:
        """Whether some of what is kept is just being let go of; ask after `kept`."""
        return bool(self._examining)

    def in_use(self) -> set[Registration]:
        """Those that a Memory is open of."""
        return set(self._used_by.copy().values())

    def kept(self) -> list[object]:
        """What is kept for memory that is being closed, or is closed and still in use."""
        # In this order, and from copies that are made in one step: what leaves the one is in the other by then.
        parting, pinned = self._parting.copy(), self._pinned.copy()
        return [each.keep for each in (*parting, *pinned)]

    def let_go_of(self, memory: object) -> Parting | None:
        """What was kept is the caller's, who calls `release_of`; None where another was first, or `close`.

        Of one Memory, one thread at a time.
        """
        key = id(memory)
        try:
            parting = Parting(self._used_by[key], self._keeps[key])
        except KeyError:
            return None
        # Before it leaves the others: `close` looks there first, and here afterwards.
        self._parting.add(parting)
        self._keeps.pop(key, None)
        self._used_by.pop(key, None)
        return parting

    def release_of(self, parting: Parting, *, owned: bool, closed: bool) -> None:
        """As `release`, of what `let_go_of` gave: ``keep`` stays alive until nothing can touch the memory any more.

        ``owned``: the region is closed. ``closed``: by the user, who may free the memory next.
        """
        parting.owned = owned
        if not closed:
            parting.until = time.monotonic() + _LINGER_S
        self._examining.add(parting)
        self._release(parting, now=closed and parting.keep is None)
        self._parting.discard(parting)
        self._examining.discard(parting)

    def now_known(self, registration: Registration) -> None:
        """Devices know its memory from now on; to be told whenever they may. Any thread."""
        # Its Memory may have been closed meanwhile, when that had nothing to look after yet.
        owner = registration.owner
        if owner is not None and not registration.closed and registration not in self.in_use():
            self._release(Parting(registration, owner()), now=False)

    def forget(self, memory: object) -> None:
        """In a forked child: what is in use there is the parent's."""
        self._used_by.pop(id(memory), None)
        self._keeps.pop(id(memory), None)

    def drain(self) -> None:
        """Let go of what was pinned and is not any more."""
        here = object()
        self._examining.add(here)
        waiting = False
        try:
            for parting in self._pinned.copy():
                if self._let_go(parting):
                    self._pinned.discard(parting)
                    parting.keep = None
                else:
                    waiting = waiting or not parting.registration.exports
        finally:
            self._examining.discard(here)
        if waiting:
            self._wake()

    def end(self, registration: Registration, *, now: bool = False) -> bool:
        """Close its region; False while operations use it, arrays show it, or devices know it. Call again then."""
        registration.closed = True
        for route in list(registration.routes.values()):
            route.drop()
        registration.routes.clear()
        return not registration.exports and registration.region.close(now)

    def hand_over(self) -> list[tuple[Registration, object]]:
        """All that is kept, and for which registration: it is the caller's, whose Context is being closed."""
        # A destructor may take one away meanwhile.
        used, keeps = self._used_by.copy(), self._keeps.copy()
        kept = [(registration, keeps[key]) for key, registration in used.items() if key in keeps]
        kept += [(parting.registration, parting.keep) for parting in (*self._parting.copy(), *self._pinned.copy())]
        self._used_by.clear()
        self._keeps.clear()
        return kept

    def close(self) -> None:
        """Forget what is still in use: it is seen to."""
        self._pinned.clear()

    def _release(self, parting: Parting, *, now: bool) -> None:
        parting.turn = parting.registration.last_turn = next(self._turns)
        if self._let_go(parting, now=now):
            parting.keep = None
            return
        self._pinned.add(parting)
        if not parting.registration.exports:
            # Arrays tell when they go, operations do not.
            self._wake()

    def _let_go(self, parting: Parting, *, now: bool = False) -> bool:
        """Close the region if it is to be closed; False while operations use it, or devices know it."""
        registration = parting.registration
        if not parting.owned:
            if registration.region.pins:
                return False
            if not registration.region.known_to_devices or registration.last_turn != parting.turn:
                return True
            if time.monotonic() < parting.until:
                return False
            # Not to wait: this may be a destructor, in the middle of that.
            if not self._ending.acquire(blocking=False):
                return False
            try:
                parting.owned = self._leave(registration)
            finally:
                self._ending.release()
            if not parting.owned:
                return True
        return self.end(registration, now=now)

    def _leave(self, registration: Registration) -> bool:
        """Let nobody find it any more; False where a Memory has it, or just comes to have it."""
        if registration.closed or registration in self.in_use():
            return registration.closed
        # Whoever has found it looks whether it is closed once it is in `_used_by`.
        registration.closed = True
        registration.closed = registration not in self.in_use()
        return registration.closed
