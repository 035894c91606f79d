"""The registered memory of one Context: the cache, the allocations, and what is closed but still in use.

Host memory has no id that is never used twice, so a registration is cached by the object that owns the allocation and
dropped with it; a hit counts only if address and size are still the same. Raw pointers, and owners that cannot be
referenced weakly, are never cached.
"""

from __future__ import annotations

import bisect
import collections
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from . import closed, inputs
from ._native import NativeError
from .errors import Closed, RegistrationFailed, Unsupported, ZerohopError, from_native
from .setbacks import Setbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._native import Engine, Region
    from .inputs import Source
    from .routes import Route

_HOST_INDEX: Final = -1
# Statuses that keep their own meaning when memory could not be had; all others are RegistrationFailed.
_KEPT: Final = (Closed, Unsupported)


class Registration:
    """One native region and what belongs to it. Memories of the same allocation share it."""

    __slots__ = (
        "__weakref__",
        "address",
        "closed",
        "device",
        "exports",
        "fd_offset",
        "how",
        "local_keys",
        "nbytes",
        "owner",
        "readonly",
        "region",
        "routes",
        "unregistrable",
    )

    def __init__(self, region: Region, device: str, fd_offset: int, *, readonly: bool) -> None:
        self.region = region
        self.address = region.address
        self.nbytes = region.nbytes
        self.device = device
        self.fd_offset = fd_offset
        self.readonly = readonly
        self.closed = False
        # Arrays that show its bytes; memory of ours stays mapped until they are gone.
        self.exports: set[weakref.ref[Export]] = set()
        # By whose life it is cached.
        self.owner: weakref.ref[Any] | None = None
        # By number of a NIC's domain: by which key its NIC knows the memory, or why it could not be registered with it.
        # By number of the domain: its key, how it was registered, or why it could not be.
        self.local_keys: dict[int, int] = {}
        self.how: dict[int, str] = {}
        self.unregistrable: Setbacks[int] = Setbacks()
        # By RemoteBuffer key. A route that has gone stale is recognised by the call that uses it.
        self.routes: dict[bytes, Route] = {}

    @property
    def shareable(self) -> bool:
        """Whether peers on this host can map it."""
        return self.region.shareable


class Export:
    """What an array that was made of a Memory holds on to."""

    __slots__ = ("__weakref__", "_keep", "_region")

    def __init__(self, registry: Registry, registration: Registration, keep: object) -> None:
        self._region = registration.region
        self._keep = keep

        def gone(reference: weakref.ref[Export]) -> None:
            registration.exports.discard(reference)
            # The region may have waited for this only.
            registry.drain()

        registration.exports.add(weakref.ref(self, gone))


# What the copies of a device that did not end in the time that close() had may still touch.
_touched_for_ever: list[object] = []


class Registry:
    """All Registrations of a Context. Thread-safe; nothing that a destructor calls takes a lock."""

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        """``wake`` has drain() called again soon, for as long as that finds something that waits for operations."""
        self._engine = engine
        self._wake = wake
        self._lock = threading.Lock()
        self._cache: dict[int, Registration] = {}
        self._live: weakref.WeakSet[Registration] = weakref.WeakSet()
        # What peers or hardware still use, and the object that must stay until they do not; with whether to close.
        self._pinned: collections.deque[tuple[Registration, object, bool]] = collections.deque()
        # What each open Memory, by its id, keeps alive. Here, so that closing the Context lets go of all of it.
        self._keeps: dict[int, tuple[Registration, object]] = {}
        # Start addresses of ctx.alloc memory, ascending, and what lies there.
        self._starts: list[int] = []
        self._allocated: weakref.WeakValueDictionary[int, Registration] = weakref.WeakValueDictionary()
        self.devices: dict[str, int] = {inputs.HOST: _HOST_INDEX}
        self.devices.update({device["name"]: device["index"] for device in engine.devices()})
        self.names = {index: name for name, index in self.devices.items()}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def pinned(self) -> int:
        """Number of regions that are closed and still in use."""
        return len(self._pinned)

    def device_index(self, name: str) -> int:
        """Native index of a device.

        Raises:
            ValueError: no such device; those that exist are named.
        """
        index = self.devices.get(name)
        if index is None:
            known = ", ".join(self.devices)
            raise ValueError(
                f"no device is called {name!r}; this Context has {known}. Fix: sim_devices=N adds simulated ones"
            )
        return index

    def register(self, source: Source) -> tuple[Registration, bool]:
        """The registration of the source's allocation, and whether it is the caller's alone, to be closed with it.

        It comes from the cache only where that is sure to be right.
        """
        owner = source.cached_by
        if owner is not None:
            cached = self._cache.get(id(owner))
            if cached is not None and cached.owner is not None and cached.owner() is owner:
                if (cached.address, cached.nbytes, cached.readonly) == (source.base, source.extent, source.readonly):
                    return cached, False
                self._expire(id(owner), cached)
        self.drain()
        known = self._of_address(source.base, source.extent)
        if known is not None:
            if source.device not in (known.device, inputs.DEVICE_BY_ADDRESS):
                self.device_index(source.device)
                raise ValueError(f"the memory at {source.address:#x} is on {known.device}, not on {source.device}")
            return known, False
        registration = self._new(source)
        return registration, owner is None or not self._remember(owner, registration)

    def allocate(self, nbytes: int, device: str) -> Registration:
        """Fresh memory of our own."""
        index = self.device_index(device)
        self.drain()
        try:
            region = self._engine.alloc(nbytes, index)
        except NativeError as error:
            raise _failed(error, "alloc", f"{nbytes} bytes on {device}") from None
        registration = Registration(region, device, 0, readonly=False)
        with self._lock:
            self._allocated[registration.address] = registration
            self._starts = sorted(self._allocated)
            self._live.add(registration)
        return registration

    def release(self, registration: Registration, keep: object, *, owned: bool) -> None:
        """A Memory that used it is gone. ``keep`` stays alive until nothing can touch the memory any more.

        Called by destructors, so on any thread at any moment: no lock, no wait.
        """
        if not self._let_go(registration, owned=owned):
            self._pinned.append((registration, keep, owned))
            if not registration.exports:
                # Arrays tell when they go, operations do not.
                self._wake()

    def keep(self, memory: object, registration: Registration, keep: object) -> None:
        """``keep`` stays alive until ``let_go_of(memory)``, which a destructor may call."""
        self._keeps[id(memory)] = (registration, keep)

    def kept_for(self, memory: object) -> object:
        """What that is."""
        return self._keeps[id(memory)][1]

    def let_go_of(self, memory: object) -> object:
        """It is the caller's now."""
        return self._keeps.pop(id(memory), (None, None))[1]

    def drain(self) -> None:
        """Let go of what was pinned and is not any more."""
        for _ in range(len(self._pinned)):
            try:
                registration, keep, owned = self._pinned.popleft()
            except IndexError:
                return
            self.release(registration, keep, owned=owned)

    def close(self) -> None:
        """Close all regions. The engine has been closed before, so that nothing is in flight but slow device copies."""
        with self._lock:
            live = list(self._live)
            self._cache.clear()
        kept = [*self._keeps.values(), *((registration, keep) for registration, keep, _ in self._pinned)]
        self._keeps.clear()
        for registration in live:
            registration.owner = None
            self._let_go(registration, owned=True)
        _touched_for_ever.extend(keep for registration, keep in kept if keep is not None and registration.region.pins)
        for registration in live:
            # Where arrays still show its bytes, they hold it; nothing else does.
            registration.region = closed.REGION
        self._pinned.clear()
        self._engine = closed.ENGINE

    def _new(self, source: Source) -> Registration:
        if source.device == inputs.DEVICE_BY_ADDRESS:
            raise Unsupported(
                f"no device of this Context owns address {source.address:#x}; this build has drivers for simulated "
                f"devices only",
                fix="register memory that came from alloc() of this Context, or copy it to host memory first",
            )
        index = self.device_index(source.device)
        backing = inputs.find_backing(source)
        try:
            if backing is None:
                region = self._engine.register(source.base, source.extent, index, -1, 0, source.readonly)
            else:
                region = self._engine.register(
                    source.base, source.extent, index, backing.fd, backing.offset, source.readonly
                )
        except NativeError as error:
            raise _failed(error, "register", f"{source.extent} bytes at {source.base:#x}") from None
        finally:
            if backing is not None:
                os.close(backing.fd)
        offset = backing.offset if backing is not None else 0
        registration = Registration(region, source.device, offset, readonly=source.readonly)
        with self._lock:
            self._live.add(registration)
        return registration

    def _of_address(self, address: int, nbytes: int) -> Registration | None:
        """The allocation of this Context that the range lies in."""
        with self._lock:
            position = bisect.bisect_right(self._starts, address) - 1
            if position < 0:
                return None
            found = self._allocated.get(self._starts[position])
        if found is None or found.closed or address + nbytes > found.address + found.nbytes:
            return None
        return found

    def _remember(self, owner: object, registration: Registration) -> bool:
        """Cache it for as long as the owner lives; False where that cannot be known."""
        key = id(owner)
        registry = weakref.ref(self)

        def gone(_: object) -> None:
            living = registry()
            if living is not None:
                living._expire(key, registration)

        try:
            registration.owner = weakref.ref(owner, gone)
        except TypeError:
            return False
        self._cache[key] = registration
        return True

    def _expire(self, key: int, registration: Registration) -> None:
        """The owner is gone, or not what it was. Called by a weak reference: no lock, no wait."""
        if self._cache.get(key) is registration:
            self._cache.pop(key, None)
        self.release(registration, None, owned=True)

    def _let_go(self, registration: Registration, *, owned: bool) -> bool:
        """Close the region if it is to be closed; False while operations use it."""
        if not owned:
            return registration.region.pins == 0
        registration.closed = True
        for route in list(registration.routes.values()):
            route.drop()
        registration.routes.clear()
        return not registration.exports and registration.region.close()


def _failed(error: NativeError, operation: str, what: str) -> ZerohopError:
    status, reason, text = error.args
    known = from_native(status, reason, text, operation=operation)
    if isinstance(known, _KEPT):
        return known
    return RegistrationFailed(f"{known.reason} ({what})", fix=known.fix, operation=operation)
