"""Declares Registration, the state of a registered allocation, and the objects that keep it in use."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop.core.base.backoff import Backoff
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop._native import NativeError, Region

# The place of the devices' drivers in ``unregistrable``, which NICs' domains have by their numbers, from 0 on.
DEVICES: Final = -1


class Extent(NamedTuple):
    """Describes the memory that peers map for a registration: all of it, or the whole that it is a part of."""

    number: int
    address: int
    nbytes: int
    fd_offset: int


class Registration:
    """Holds the native region, the keys of NICs and the routes of one allocation. Its Memories share it."""

    __slots__ = (
        "__weakref__",
        "address",
        "closed",
        "device",
        "exports",
        "extent",
        "fd_offset",
        "how",
        "last_turn",
        "leaving",
        "lingers",
        "local_keys",
        "made_for",
        "nbytes",
        "number",
        "ours",
        "owner",
        "readonly",
        "region",
        "retired",
        "routes",
        "unregistrable",
        "users",
    )

    _numbers: Final = itertools.count(1)

    def __init__(self, region: Region, device: str, fd_offset: int, *, readonly: bool, ours: bool = False) -> None:
        self.number = next(self._numbers)
        # The first Memory that was made of it.
        self.made_for: weakref.ref[object] | None = None
        self.region = region
        self.address = region.address
        self.nbytes = region.nbytes
        self.device = device
        self.fd_offset = fd_offset
        self.extent = Extent(self.number, region.address, region.nbytes, fd_offset)
        self.readonly = readonly
        # Whether this Context allocated the memory. The pages get no other use before the registration is closed.
        self.ours = ours
        self.closed = False
        # Arrays that show its bytes; memory of ours stays mapped until they are freed.
        self.exports: set[weakref.ref[Export]] = set()
        # Ids of its open Memories, and a token for each thread that is about to close it because there are none.
        self.users: set[int] = set()
        self.leaving: set[object] = set()
        # Whether it has left the cache, and closes with its last Memory.
        self.retired = False
        # Whether devices may know its memory for a while after its last Memory is closed.
        self.lingers = False
        # The turn of the last RetainedBuffer that was made of it.
        self.last_turn = 0
        # The object whose lifetime bounds the cache entry.
        self.owner: weakref.ref[Any] | None = None
        # By number of a NIC's domain: the local key, the way of registration, and why registration failed. The last one
        # also has DEVICES.
        self.local_keys: dict[int, int] = {}
        self.how: dict[int, str] = {}
        self.unregistrable: Backoff[int] = Backoff()
        # Routes by RemoteBuffer key; their class is in lanes/link.py. A call that finds a stale route notices that.
        self.routes: dict[bytes, Any] = {}

    @property
    def exported(self) -> bool:
        """Tell whether there are arrays that show its bytes."""
        for reference in self.exports.copy():
            # A signal handler that raises may have ended the callback that should have discarded it.
            if reference() is None:
                self.exports.discard(reference)
        return bool(self.exports)

    @property
    def shareable(self) -> bool:
        """Tell whether peers on this host can map the memory."""
        return self.region.shareable

    def covers(self, address: int, nbytes: int) -> bool:
        """Tell whether it is still open, and of all bytes of a range."""
        return not self.closed and self.address <= address and address + nbytes <= self.address + self.nbytes

    def refused(self, where: int, error: NativeError) -> None:
        """Record that a NIC's domain, or DEVICES, did not take the memory."""
        status, reason, _ = error.args
        self.unregistrable.record_failure(where, from_native(*error.args).reason, status, reason)


class Export:
    """Keeps a Memory's region mapped while an array that was made of the Memory lives."""

    __slots__ = ("__weakref__", "_keep", "_region")

    def __init__(self, registration: Registration, keep: object, freed: Callable[[], None]) -> None:
        """Note the array; ``freed`` is called once it is gone, because it may have been the last to use the region."""
        self._region = registration.region
        self._keep = keep

        def gone(reference: weakref.ref[Export]) -> None:
            registration.exports.discard(reference)
            freed()

        registration.exports.add(weakref.ref(self, gone))


class RetainedBuffer:
    """Holds the object that a closed Memory kept alive, and the registration of its memory.

    Setting ``keep`` to None releases the object; apart from shares, nothing else in this library refers to it.
    """

    __slots__ = ("keep", "registration", "shares", "turn", "until")

    def __init__(self, registration: Registration, keep: object) -> None:
        self.registration = registration
        self.keep = keep
        # The shares that are to be withdrawn before.
        self.shares: Sequence[Any] = ()
        # Counts the buffers: the last one of a registration makes devices forget its memory.
        self.turn = 0
        # Monotonic time until which devices keep the memory, because it may be registered again.
        self.until = 0.0
