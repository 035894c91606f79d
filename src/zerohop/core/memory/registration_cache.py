"""Registers memory of one Context: the cache of registrations, and the allocations.

Host memory has no id that is never used twice. So a registration is cached by the object that owns the allocation, and
dropped with that object; a hit counts only if address and size are still the same. Raw pointers, and owners that cannot
be referenced weakly, are never cached.
"""

from __future__ import annotations

import bisect
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.core.base import closed_engine, sandbox, threads
from zerohop.core.memory import shared_pages, sources
from zerohop.core.memory.living import Living
from zerohop.core.memory.registration import Registration
from zerohop.core.runtime.devices import ANY_MEMORY, DEVICE_BY_ADDRESS, GPUS, HOST
from zerohop.errors import Closed, LimitReached, RegistrationFailed, Unsupported, ZerohopError, from_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Engine
    from zerohop.core.memory.retention import Retention
    from zerohop.core.memory.source import Source
    from zerohop.core.runtime.devices import Devices

_STALE_STARTS: Final = 64
# Seconds between checks whether devices have forgotten memory: no event tells that within a time limit.
_CHECK_S: Final = 0.001
# Number of others that each new registration checks for memory that was freed.
_CHECKED_EACH_TIME: Final = 16
# Errors that keep their class when memory could not be registered; all others become RegistrationFailed.
_KEPT: Final = (Closed, LimitReached, Unsupported)


# Objects that a device's copies may still touch, because the copies did not end in the time that close() had.
_touched_for_ever: list[object] = []


class RegistrationCache:
    """Holds all Registrations of a Context. Thread-safe; no method that a destructor calls takes a lock."""

    def __init__(
        self, engine: Engine, devices: Devices, retention: Retention, on_device: Callable[[int], None]
    ) -> None:
        """Make an empty registry; ``on_device(index)`` is called for each registration of a device's memory."""
        self._engine = engine
        self._devices = devices
        self._retention = retention
        self._on_device_used = on_device
        # A signal's handler or a destructor may call this in the middle of itself, on the same thread.
        self._lock = threading.RLock()
        self._cache: dict[int, Registration] = {}
        self._live = Living()
        # Start addresses of memory from ctx.alloc, ascending, and the registration at each.
        self._starts: list[int] = []
        self._allocated: weakref.WeakValueDictionary[int, Registration] = weakref.WeakValueDictionary()
        # Registrations of GPU memory by address and length, each with the driver's id of the allocation.
        self._on_device: dict[tuple[int, int], tuple[Registration, int]] = {}
        # Registrations of single allocations by the driver's id, which is fast to ask for.
        self._by_id: dict[int, Registration] = {}
        self._looked_at = self._looked_at_owner = 0

    def __len__(self) -> int:
        return len(self._live)

    def register(self, source: Source) -> tuple[Registration, bool]:
        """Return the registration of a source's allocation, and whether it belongs to the caller alone.

        A registration that belongs to the caller alone closes with the caller's Memory. The cache is used only where it
        is certain to be right.
        """
        owner = source.cached_by
        cached = self.of_owner(owner)
        if cached is not None:
            if (cached.address, cached.nbytes, cached.readonly) == (source.base, source.extent, source.readonly):
                return cached, False
            self._cache.pop(id(owner), None)
            self._retention.retire(cached, owner)
        self._retention.drain()
        self._expire_some()
        known = self._of_address(source.base, source.extent)
        if source.device == ANY_MEMORY:
            on_host = known is None and self._engine.describe(source.address, source.nbytes) is None
            source = source._replace(device=HOST if on_host else DEVICE_BY_ADDRESS)
        elif source.device == DEVICE_BY_ADDRESS and source.nbytes == 0:
            source = source._replace(device=HOST)  # an empty tensor of a GPU has no address
        if known is not None:
            if source.device not in (known.device, DEVICE_BY_ADDRESS):
                self._devices.index_of(source.device)
                raise ValueError(f"the memory at {source.address:#x} is on {known.device}, not on {source.device}")
            return known, False
        if source.device == DEVICE_BY_ADDRESS or source.device.partition(":")[0] in GPUS:
            return self._register_on_device(source), False
        registration = self._new(source)
        return registration, owner is None or not self._remember(owner, registration)

    def of_owner(self, owner: object) -> Registration | None:
        """Return the registration that is cached for the owner of some memory, which may have other memory by now."""
        cached = self._cache.get(id(owner))
        reference = None if cached is None or cached.closed else cached.owner
        return cached if reference is not None and reference() is owner else None

    def known_on_device(self, address: int, nbytes: int) -> Registration | None:
        """Return the registration of a GPU's memory, if there is one and the memory is still the same. Never raises."""
        try:
            known_by_id = self._by_id.get(self._engine.allocation_id(address))
            if known_by_id is not None and known_by_id.covers(address, nbytes):
                return known_by_id
            found = self._engine.describe(address, nbytes)
        except NativeError:  # the engine was closed meanwhile
            return None
        if found is not None:
            known = self._on_device.get(found[1:3])
            if known is not None and known[1] == found[3] and not known[0].closed:
                return known[0]
        return self._of_address(address, nbytes)

    def allocate(self, nbytes: int, device: str, *, whole: bool = True) -> Registration:
        """Allocate memory. Unless it is ``whole``, only its parts are found by address later."""
        index = self._devices.index_of(device)
        self._retention.drain()
        try:
            region = self._engine.alloc(nbytes, index)
        except NativeError as error:
            raise _failed(error, "alloc", f"{nbytes} bytes on {device}") from None
        if index >= 0:
            self._on_device_used(index)
        registration = Registration(region, device, 0, readonly=False, ours=True)
        self._live.add(registration)
        if whole:
            self._remember_address(registration)
        return registration

    def part(self, whole: Registration, offset: int, nbytes: int) -> Registration:
        """Register a part of allocated memory, which is used and closed by itself. NICs use the keys of the whole."""
        try:
            region = self._engine.part(whole.region, offset, nbytes)
        except NativeError as error:
            raise _failed(error, "alloc", f"{nbytes} bytes on {whole.device}") from None
        registration = Registration(region, whole.device, whole.fd_offset + offset, readonly=whole.readonly, ours=True)
        registration.extent = whole.extent
        registration.local_keys, registration.how = whole.local_keys, whole.how
        registration.unregistrable = whole.unregistrable
        self._live.add(registration)
        self._remember_address(registration)
        return registration

    def close(self, deadline: float) -> None:
        """Close all regions. The engine was closed before, so that only slow device copies may still be in flight.

        Until ``deadline``, of the monotonic clock, this waits for devices to forget memory that may be freed next.
        """
        with self._lock:
            live = self._live.all()
            self._cache.clear()
            self._on_device.clear()
            self._by_id.clear()
        kept = self._retention.hand_over(live)
        known = []
        for registration in live:
            # The owner stays alive for as long as devices know its memory.
            kept.append((registration, registration.owner() if registration.owner is not None else None))
            registration.owner = None
            gone = self._retention.end(registration)
            if registration.exported and not registration.region.pins:
                # The region stays for the arrays that show it, but devices can forget it.
                gone = registration.region.deregister()
            if not gone and not registration.region.pins:
                known.append(registration)
        _touched_for_ever.extend(keep for registration, keep in kept if keep is not None and registration.region.pins)
        stay = set(known)
        self._outlast_devices(known, [entry for entry in kept if entry[0] in stay], deadline)
        for registration in live:
            # Arrays that still show its bytes hold the region; nothing else does.
            registration.region = closed_engine.REGION
        self._retention.close()
        self._engine = closed_engine.ENGINE

    def _outlast_devices(
        self, known: list[Registration], kept: list[tuple[Registration, object]], deadline: float
    ) -> None:
        """Keep buffers until devices have forgotten them; wait for buffers that only the user keeps."""
        regions = [registration.region for registration in known]
        by_us = {registration for registration, keep in kept if keep is not None}
        for registration in known:
            while registration not in by_us and not registration.region.deregister() and time.monotonic() < deadline:
                time.sleep(_CHECK_S)
        last: list[object] = [*kept, *known]
        known.clear()
        kept.clear()

        def outlast() -> None:
            for region in regions:
                region.deregister(True)
            last.clear()

        if regions:
            threads.Thread(outlast, name="zerohop-drop").begin()

    def _register_on_device(self, source: Source) -> Registration:
        """Return the registration of a GPU's allocation, or of the allocations that the range spans.

        The driver never gives the same id to two allocations, so a registration of freed memory is recognised.
        """
        found = self._engine.describe(source.address, source.nbytes)
        if found is None:
            raise Unsupported(
                f"the memory at {source.address:#x} is not all allocated on one GPU of this process, or it is managed "
                f"memory, whose pages move",
                fix="register what cudaMalloc, a memory pool or virtual memory gave; zerohop doctor shows the GPUs",
            )
        index, base, size, number = found
        known = self._on_device.get((base, size))
        if known is not None:
            if known[1] == number and not known[0].closed:
                return known[0]
            self._forget_on_device((base, size), known)
        self._forget_what_was_freed()
        if source.device != DEVICE_BY_ADDRESS and self._devices.index_of(source.device) != index:
            raise ValueError(f"the memory at {source.address:#x} is not on {source.device}")
        name = self._devices.name_of(index)
        registration = self._new(source._replace(base=base, extent=size, device=name))
        made = registration, number
        # A range that spans several allocations has an id of its own.
        alone = self._engine.allocation_id(base) == number
        with self._lock:
            known = self._on_device.get((base, size))
            first = known is None or known[1] != number or known[0].closed
            if first:
                self._on_device[base, size] = made
                if alone:
                    self._by_id[number] = registration
        if known is not None:
            # Another thread has registered the allocation meanwhile.
            self._retention.release((known if first else made)[0])
        return registration if first or known is None else known[0]

    def _forget_on_device(self, key: tuple[int, int], known: tuple[Registration, int]) -> None:
        """Forget a registration whose memory was freed, unless another thread was first."""
        with self._lock:
            if self._on_device.get(key) is not known:
                return
            del self._on_device[key]
            if self._by_id.get(known[1]) is known[0]:
                del self._by_id[known[1]]
        self._retention.release(known[0])

    def _forget_what_was_freed(self) -> None:
        """Check some registrations on devices, other ones each time, because no event tells when memory is freed."""
        with self._lock:
            entries = list(self._on_device.copy().items())
        if not entries:
            return
        start = self._looked_at % len(entries)
        self._looked_at = start + _CHECKED_EACH_TIME
        freed = []
        for key, known in (entries[start:] + entries[:start])[:_CHECKED_EACH_TIME]:
            found = self._engine.describe(*key)
            if found is None or found[3] != known[1]:
                freed.append((key, known))
        if not freed:
            return
        # Open Memories keep their registration.
        for key, known in freed:
            if not known[0].users:
                self._forget_on_device(key, known)

    def _new(self, source: Source) -> Registration:
        index = self._devices.index_of(source.device)
        backing = sources.find_backing(source)
        try:
            if backing is not None:
                shared_pages.reserve(backing, source.extent, readonly=source.readonly)
            fd, offset = (-1, 0) if backing is None else backing
            # A GPU's registration is of the whole allocation, in which a tensor that moves is one of many.
            block = source.block if index < 0 else None
            region = self._engine.register(source.base, source.extent, index, fd, offset, source.readonly, block)
        except NativeError as error:
            raise _failed(error, "register", f"{source.extent} bytes at {source.base:#x}") from None
        finally:
            if backing is not None:
                sandbox.close(backing.fd)
        if index >= 0:
            self._on_device_used(index)
        registration = Registration(region, source.device, offset, readonly=source.readonly)
        self._live.add(registration)
        return registration

    def _remember_address(self, registration: Registration) -> None:
        with self._lock:
            # In this order: what comes in between, on this very thread, drops starts that belong to nothing.
            self._allocated[registration.address] = registration
            bisect.insort(self._starts, registration.address)
            # Addresses of closed registrations stay in the list for a while.
            if len(self._starts) > 2 * len(self._allocated) + _STALE_STARTS:
                self._starts = sorted(self._allocated)

    def _of_address(self, address: int, nbytes: int) -> Registration | None:
        """Return the registration of this Context's allocation that contains a range."""
        with self._lock:
            position = bisect.bisect_right(self._starts, address) - 1
            while position >= 0 and self._starts[position] not in self._allocated:
                del self._starts[position]
                position -= 1
            found = self._allocated.get(self._starts[position]) if position >= 0 else None
        return found if found is not None and found.covers(address, nbytes) else None

    def _remember(self, owner: object, registration: Registration) -> bool:
        """Cache a registration for its owner's lifetime; return False if the owner cannot be referenced weakly."""
        key = id(owner)
        registry, its_registration = weakref.ref(self), weakref.ref(registration)

        def gone(_: object) -> None:
            living, registered = registry(), its_registration()
            if living is not None and registered is not None:
                living._expire(key, registered)

        try:
            registration.owner = weakref.ref(owner, gone)
        except TypeError:
            return False
        # An object that exports its buffer cannot free the memory while the export exists.
        registration.lingers = sources.has_its_own_memory(owner)
        self._cache[key] = registration
        return True

    def _expire(self, key: int, registration: Registration) -> None:
        """Drop a cached registration whose owner is gone. A weak reference calls this, so it takes no lock."""
        if self._cache.get(key) is registration:
            self._cache.pop(key, None)
        self._retention.release(registration, now=True)

    def _expire_some(self) -> None:
        """Look for owners that are gone, among others each time: a signal handler that raises ends ``gone`` early."""
        keys = list(self._cache)
        start = self._looked_at_owner % max(1, len(keys))
        self._looked_at_owner = start + _CHECKED_EACH_TIME
        for key in keys[start : self._looked_at_owner]:
            cached = self._cache.get(key)
            if cached is not None and cached.owner is not None and cached.owner() is None:
                self._expire(key, cached)


def _failed(error: NativeError, operation: str, what: str) -> ZerohopError:
    status, reason, text = error.args
    known = from_native(status, reason, text, operation=operation)
    if isinstance(known, _KEPT):
        return known
    return RegistrationFailed(f"{known.reason} ({what})", fix=known.fix, operation=operation)
