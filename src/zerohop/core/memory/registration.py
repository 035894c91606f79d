"""A registered allocation, what belongs to it, and what holds on to it."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.base.backoff import Setbacks

if TYPE_CHECKING:
    from zerohop._native import Region
    from zerohop.core.lanes.routes import Route
    from zerohop.core.memory.memory import Memory
    from zerohop.core.memory.retention import Keeping


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
        # In this process.
        self.number = next(self._numbers)
        # The first Memory of it.
        self.made_for: weakref.ref[Memory] | None = None
        self.region = region
        self.address = region.address
        self.nbytes = region.nbytes
        self.device = device
        self.fd_offset = fd_offset
        self.readonly = readonly
        # Allocated by this Context, so that nobody else is given it once it is closed.
        self.ours = ours
        self.closed = False
        # Arrays that show its bytes; memory of ours stays mapped until they are gone.
        self.exports: set[weakref.ref[Export]] = set()
        # Open Memories of it, by their ids; and who is about to close it, if there are none.
        self.users: set[int] = set()
        self.leaving: set[object] = set()
        # Nobody finds it any more: it is closed with the last Memory of it.
        self.retired = False
        # Whether devices may know it for a while after that.
        self.lingers = False
        # That of the last of its Partings.
        self.last_turn = 0
        # By whose life it is cached.
        self.owner: weakref.ref[Any] | None = None
        # By number of a NIC's domain: the key by which the NIC knows the memory, how it was registered, or why it could
        # not be.
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

    def __init__(self, keeping: Keeping, registration: Registration, keep: object) -> None:
        self._region = registration.region
        self._keep = keep

        def gone(reference: weakref.ref[Export]) -> None:
            registration.exports.discard(reference)
            # The region may have waited for this only.
            keeping.drain()

        registration.exports.add(weakref.ref(self, gone))


class Parting:
    """What a Memory kept alive that is being closed, and of which registration it is.

    Who clears ``keep`` lets go of the former; but for peers' shares, nothing else of ours refers to it.
    """

    __slots__ = ("keep", "registration", "turn", "until")

    def __init__(self, registration: Registration, keep: object) -> None:
        self.registration = registration
        self.keep = keep
        # Which of the registration's it is: the last one has devices forget memory that is cached.
        self.turn = 0
        # Not before then, of the monotonic clock: somebody may come back.
        self.until = 0.0
