"""Keeps buffers alive until no operation, peer or device uses them.

A device must have forgotten an array before the array's pages are freed. A weak reference to the array comes too late
for that: numpy (from 2.5 on) and mmap free their memory before they call weak references. So the array itself is kept.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from zerohop.core.memory.registration import RetainedBuffer
from zerohop.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zerohop.core.memory.local_share import Shared
    from zerohop.core.memory.registration import Registration

# Seconds for which devices still know an array that no Memory refers to: a program may register the same array in each
# of its steps, and to pin and unpin pages takes longer than most transfers.
_LINGER_S: Final = 1.0


class Retention:
    """Keeps the buffers of one Context. Thread-safe; nothing that a destructor calls takes a lock of Python's.

    For a Memory: keep, detach, release_detached. For a registration alone: retire, release, end. Later, again: drain.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Remember ``wake``, called while buffers wait: it has the control thread call ``drain`` soon."""
        self._wake = wake
        self._forked = False
        # Buffers of closed Memories that operations, peers or devices still use.
        self._pinned: set[RetainedBuffer] = set()
        # Memories that nobody has any more, and that peers still use by loose shares for transfers of this side.
        self._used: set[Shared] = set()
        # Buffers of Memories that are just being closed: after a moment they are released, or in `_pinned`.
        self._detached: set[RetainedBuffer] = set()
        # One entry for each thread that is just releasing buffers.
        self._releasing: set[object] = set()
        self._turns = itertools.count(1)
        # The object that each open Memory keeps alive, by the id of the Memory. It is kept here and not in the Memory,
        # so that closing the Context releases all of them.
        self._keeps: dict[int, object] = {}

    @property
    def pinned(self) -> int:
        """Return the number of closed Memories whose memory operations, peers or devices still use."""
        return len(self._pinned)

    @property
    def releasing(self) -> bool:
        """Tell whether a thread is releasing buffers; call ``kept`` before."""
        return bool(self._releasing)

    def keep(self, memory: object, registration: Registration, keep: object) -> None:
        """Keep an object alive until ``detach(memory)``, which a destructor may call."""
        key = id(memory)
        # In this order, because ``detach`` takes the second away only where it finds the first.
        self._keeps[key] = keep
        registration.users.add(key)

    def kept_for(self, memory: object) -> object:
        """Return the object that an open Memory keeps alive.

        Raises:
            Closed: the Memory is closed.
        """
        try:
            return self._keeps[id(memory)]
        except KeyError:
            raise Closed("this Memory was closed", fix="register the memory again") from None

    def get_kept(self, memory: object) -> object:
        """Do what ``kept_for`` does, but return None once the Memory is closed."""
        return self._keeps.get(id(memory))

    def kept(self) -> list[object]:
        """Return the objects kept for Memories that are being closed, or are closed and still in use."""
        # A buffer enters `_pinned` before it leaves `_detached`, so `_detached` is copied first.
        detached, pinned = self._detached.copy(), self._pinned.copy()
        return [each.keep for each in (*detached, *pinned)]

    def detach(self, memory: Shared, registration: Registration) -> RetainedBuffer | None:
        """Take over what a Memory of this registration keeps; the caller passes it to ``release_detached``.

        Returns None if another thread or ``hand_over`` has taken it. One thread at a time may call this for a Memory,
        also again if it was interrupted.
        """
        key = id(memory)
        buffer = memory._left
        if buffer is None:
            try:
                buffer = memory._left = RetainedBuffer(registration, self._keeps[key])
            except KeyError:
                return None
        # The buffer is added before its entry goes, because `hand_over` reads the entries first and the buffers last.
        self._detached.add(buffer)
        self._keeps.pop(key, None)
        registration.users.discard(key)
        return buffer

    def drop(self, memory: object, registration: Registration) -> bool:
        """Release what a Memory without shares keeps, for its destructor, if nothing can use the memory any more.

        Returns False if something may: ``detach`` goes on then.
        """
        if self._forked or registration.ours:
            return False
        key = id(memory)
        # First, because ``retire`` and ``known_to_devices`` leave the rest to the last Memory. The object goes last,
        # because a signal's handler may come up in between, and ``detach`` goes on only while it is here.
        registration.users.discard(key)
        region = registration.region
        if registration.retired or region.pins or region.known_to_devices:
            return False
        self._keeps.pop(key, None)
        return True

    def release_detached(self, buffer: RetainedBuffer, *, owned: bool, closed: bool) -> None:
        """Release what ``detach`` returned as soon as nothing uses the memory any more.

        Args:
            buffer: the object to release.
            owned: the registration leaves the cache, and ends with its last Memory.
            closed: the user closed the Memory, and may free its pages next.
        """
        if owned:
            buffer.registration.retired = True
        if buffer.registration.lingers and not closed:
            buffer.until = time.monotonic() + _LINGER_S
        self._releasing.add(buffer)
        self._release(buffer, now=closed and buffer.keep is None)
        self._detached.discard(buffer)
        self._releasing.discard(buffer)

    def retire(self, registration: Registration, owner: object) -> None:
        """End a registration, which is in no cache any more, with its last Memory; keep its owner alive until then."""
        registration.retired = True
        self._release(RetainedBuffer(registration, owner), now=False)

    def release(self, registration: Registration, *, now: bool = False) -> None:
        """End a registration whose memory is gone or about to go, as soon as no operation uses it.

        Destructors call this, on any thread. With ``now`` it waits until devices have forgotten the memory, because the
        memory is freed next in any case.
        """
        registration.closed = True
        self._release(RetainedBuffer(registration, None), now=now)

    def known_to_devices(self, registration: Registration) -> None:
        """Note that devices may know a registration's memory from now on. Any thread may call this."""
        # The Memory may have been closed at a time when no device knew the memory.
        owner = registration.owner
        if owner is not None and not registration.closed and not registration.users:
            self._release(RetainedBuffer(registration, owner()), now=False)

    def end_later(self, memory: Shared) -> None:
        """Close a Memory that nobody has any more, for its destructor, once no operation uses it."""
        self._used.add(memory)
        self._wake()

    def forget(self, memory: object) -> None:
        """Drop the entry of a Memory in a forked child, where all that is in use belongs to the parent."""
        self._keeps.pop(id(memory), None)

    def stop_lingering(self) -> None:
        """Have devices forget memory that they know only because it may be registered again."""
        for buffer in self._pinned.copy():
            buffer.until = 0.0
        self.drain()

    def drain(self) -> None:
        """Release the buffers that nothing uses any more."""
        here = object()
        self._releasing.add(here)
        waiting = False
        try:
            for buffer in self._pinned.copy():
                if self._try_release(buffer):
                    self._pinned.discard(buffer)
                    buffer.keep = None
                else:
                    waiting = waiting or not buffer.registration.exported
            for memory in self._used.copy():
                if memory._registration.region.pins:
                    waiting = True
                else:
                    self._used.discard(memory)
                    memory._close(0, last=True)
        finally:
            self._releasing.discard(here)
        if waiting:
            self._wake()

    def end(self, registration: Registration, *, now: bool = False) -> bool:
        """Close the region of a registration.

        Returns False while operations use it, arrays show its bytes or devices know it; the caller then tries again.
        """
        registration.closed = True
        for route in list(registration.routes.values()):
            route.drop()
        registration.routes.clear()
        return not registration.exported and registration.region.close(now)

    def hand_over(self, registrations: Iterable[Registration]) -> list[tuple[Registration, object]]:
        """Return all that is kept, each with its registration, to a caller that is closing the Context."""
        # A destructor may take an entry away meanwhile.
        used = [(registration, key) for registration in registrations for key in registration.users.copy()]
        kept = [(registration, self._keeps[key]) for registration, key in used if key in self._keeps]
        kept += [(buffer.registration, buffer.keep) for buffer in (*self._detached.copy(), *self._pinned.copy())]
        self._keeps.clear()
        return kept

    def close(self) -> None:
        """Forget the buffers that are still in use: after ``hand_over`` the caller keeps them."""
        self._pinned.clear()
        self._used.clear()

    def abandon(self) -> None:
        """Release nothing from now on, in a forked child: everything belongs to the parent."""
        self._forked = True
        self._pinned.clear()
        self._used.clear()

    def _release(self, buffer: RetainedBuffer, *, now: bool) -> None:
        if self._forked:
            return
        buffer.turn = buffer.registration.last_turn = next(self._turns)
        if self._try_release(buffer, now=now):
            buffer.keep = None
            return
        self._pinned.add(buffer)
        if not buffer.registration.exported:
            # The end of an array calls `drain`; the end of an operation does not.
            self._wake()

    def _try_release(self, buffer: RetainedBuffer, *, now: bool = False) -> bool:
        """End the registration if this buffer is its last; return whether the object need not be kept any longer."""
        registration = buffer.registration
        region = registration.region
        if registration.ours and buffer.keep is not None:
            # The region owns the pages. The kept object may be an array that shows them, so do not wait for arrays.
            if registration.retired and not registration.closed and self._leave(registration):
                self._release(RetainedBuffer(registration, None), now=False)
            return region.pins == 0
        if not registration.closed:
            if registration.users or (registration.ours and not registration.retired):
                # Its other Memories end it; memory of ours ends with its owner, which sets `retired`.
                return region.pins == 0
            if not registration.retired:
                if region.pins:
                    return False
                if not region.known_to_devices or registration.last_turn != buffer.turn:
                    return True
                if time.monotonic() < buffer.until:
                    return False
            if not self._leave(registration):
                return region.pins == 0
        return self.end(registration, now=now)

    def _leave(self, registration: Registration) -> bool:
        """Mark a registration closed; return False if a new Memory is just being made of it."""
        # A new Memory writes `users`, then reads `leaving`; this does the reverse, so at least one sees the other.
        here = object()
        registration.leaving.add(here)
        try:
            if registration.users:
                return False
            registration.closed = True
            return True
        finally:
            registration.leaving.discard(here)
