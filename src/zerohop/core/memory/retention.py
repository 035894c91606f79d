"""What Memories keep alive, until nothing can touch it any more: no operation, no peer, no device.

What devices know must not go before they have forgotten it, and that the owner of an array is gone is told too late for
that: numpy (from 2.5 on) and mmap free their memory before they tell weak references. So it is kept until then.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from zerohop.core.memory.registration import Parting
from zerohop.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zerohop.core.memory.memory import Memory
    from zerohop.core.memory.registration import Registration

# How long devices still know an array once nothing here refers to it: a program may come back with the same one in each
# step, and to pin and unpin pages takes longer than most transfers.
_LINGER_S: Final = 1.0


class Keeping:
    """That of one Context. Thread-safe; nothing that a destructor calls takes a lock of Python's."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` has drain() called again soon, for as long as that finds something that waits."""
        self._wake = wake
        self._forked = False
        # What operations, peers or devices still use, and the object that must stay until they do not. Each stays in
        # here until it is let go of, so that whoever looks for it finds it.
        self._pinned: set[Parting] = set()
        # What Memories that are being closed keep, until it is in `_pinned` where it has to be.
        self._parting: set[Parting] = set()
        self._examining: set[object] = set()
        self._turns = itertools.count(1)
        # What each open Memory, by its id, keeps alive. Here, so that closing the Context lets go of all of it.
        self._keeps: dict[int, object] = {}

    @property
    def pinned(self) -> int:
        """Number of Memories that are gone and whose memory operations, peers or devices still use."""
        return len(self._pinned)

    @property
    def examining(self) -> bool:
        """Whether some of what is kept is just being let go of; ask after `kept`."""
        return bool(self._examining)

    def keep(self, memory: Memory, registration: Registration, keep: object) -> None:
        """``keep`` stays alive until ``let_go_of(memory)``, which a destructor may call."""
        key = id(memory)
        registration.users.add(key)
        self._keeps[key] = keep

    def kept_for(self, memory: Memory) -> object:
        """What that is."""
        try:
            return self._keeps[id(memory)]
        except KeyError:
            raise Closed("this Memory was closed", fix="register the memory again") from None

    def kept_by(self, memory: Memory) -> object:
        """The same; None once it is closed."""
        return self._keeps.get(id(memory))

    def kept(self) -> list[object]:
        """What is kept for memory that is being closed, or is closed and still in use."""
        # In this order, and from copies that are made in one step: what leaves the one is in the other by then.
        parting, pinned = self._parting.copy(), self._pinned.copy()
        return [each.keep for each in (*parting, *pinned)]

    def let_go_of(self, memory: Memory) -> Parting | None:
        """What was kept is the caller's, who calls `release_of`; None where another was first, or `hand_over`.

        Of one Memory, one thread at a time.
        """
        key, registration = id(memory), memory._registration
        try:
            parting = Parting(registration, self._keeps[key])
        except KeyError:
            return None
        # Before it leaves the others: `hand_over` looks there first, and here afterwards.
        self._parting.add(parting)
        self._keeps.pop(key, None)
        registration.users.discard(key)
        return parting

    def release_of(self, parting: Parting, *, owned: bool, closed: bool) -> None:
        """Let go of what `let_go_of` gave, once nothing can touch the memory any more.

        ``owned``: nobody is to find its registration any more, which ends with the last Memory of it. ``closed``: by
        the user, who may free the memory next.
        """
        if owned:
            parting.registration.retired = True
        if parting.registration.lingers and not closed:
            parting.until = time.monotonic() + _LINGER_S
        self._examining.add(parting)
        self._release(parting, now=closed and parting.keep is None)
        self._parting.discard(parting)
        self._examining.discard(parting)

    def retire(self, registration: Registration, owner: object) -> None:
        """Nobody finds it any more; it ends with the last Memory of it, and ``owner`` stays alive until it has."""
        registration.retired = True
        self._release(Parting(registration, owner), now=False)

    def release(self, registration: Registration, *, now: bool = False) -> None:
        """Its memory is gone, or about to be: end it, whatever Memories there are of it, as soon as nothing uses it.

        Called by destructors, so on any thread at any moment. It waits for devices only where the memory goes ``now``,
        whatever they know of it.
        """
        registration.closed = True
        self._release(Parting(registration, None), now=now)

    def now_known(self, registration: Registration) -> None:
        """Devices know its memory from now on; to be told whenever they may. Any thread."""
        # Its Memory may have been closed meanwhile, when that had nothing to look after yet.
        owner = registration.owner
        if owner is not None and not registration.closed and not registration.users:
            self._release(Parting(registration, owner()), now=False)

    def forget(self, memory: Memory) -> None:
        """In a forked child: what is in use there is the parent's."""
        self._keeps.pop(id(memory), None)

    def hurry(self) -> None:
        """Have devices forget what they know only in case that somebody comes back."""
        for parting in self._pinned.copy():
            parting.until = 0.0
        self.drain()

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

    def hand_over(self, registrations: Iterable[Registration]) -> list[tuple[Registration, object]]:
        """All that is kept, and for which of these: it is the caller's, whose Context is being closed."""
        # A destructor may take one away meanwhile.
        used = [(registration, key) for registration in registrations for key in registration.users.copy()]
        kept = [(registration, self._keeps[key]) for registration, key in used if key in self._keeps]
        kept += [(parting.registration, parting.keep) for parting in (*self._parting.copy(), *self._pinned.copy())]
        self._keeps.clear()
        return kept

    def close(self) -> None:
        """Forget what is still in use: it is seen to."""
        self._pinned.clear()

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's, and nothing of it may be asked for."""
        self._forked = True
        self._pinned.clear()

    def _release(self, parting: Parting, *, now: bool) -> None:
        if self._forked:
            return
        parting.turn = parting.registration.last_turn = next(self._turns)
        if self._let_go(parting, now=now):
            parting.keep = None
            return
        self._pinned.add(parting)
        if not parting.registration.exports:
            # Arrays tell when they go, operations do not.
            self._wake()

    def _let_go(self, parting: Parting, *, now: bool = False) -> bool:
        """Whether what it keeps need not stay; before that, end the registration if this is its last."""
        registration = parting.registration
        region = registration.region
        if registration.ours and parting.keep is not None:
            # The pages are the region's. What shows them may be what is kept, so that this is not to wait for that.
            if registration.retired and not registration.closed and self._leave(registration):
                self._release(Parting(registration, None), now=False)
            return region.pins == 0
        if not registration.closed:
            if registration.users or (registration.ours and not registration.retired):
                # What is left to do is the other Memories'.
                return region.pins == 0
            if not registration.retired:
                if region.pins:
                    return False
                if not region.known_to_devices or registration.last_turn != parting.turn:
                    return True
                if time.monotonic() < parting.until:
                    return False
            if not self._leave(registration):
                return region.pins == 0
        return self.end(registration, now=now)

    def _leave(self, registration: Registration) -> bool:
        """Let nobody find it any more; False where a Memory just comes to have it."""
        # Whoever finds it becomes a user first, and looks then whether somebody leaves; here it is the other way round.
        here = object()
        registration.leaving.add(here)
        try:
            if registration.users:
                return False
            registration.closed = True
            return True
        finally:
            registration.leaving.discard(here)
