"""What this Context has shared, who has mapped it, and how it is taken back."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from . import auth, closed
from ._native import NativeError, Reason, Status
from .errors import RevocationIncomplete, from_native
from .remote_buffer import RemoteBuffer, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ._native import Engine
    from .connection import Connection
    from .memory import Memory
    from .registry import Registration

_READ, _WRITE = 1, 2
_SHM_MAPPABLE = b"m"
# A deadline that has passed: ask, and do not wait.
_AT_ONCE_NS = 1


class LocalShare:
    """One share of our memory."""

    __slots__ = ("handle", "importers", "memory", "offset", "registration", "returned", "revocable")

    def __init__(self, registration: Registration, offset: int, handle: RemoteBuffer, *, revocable: bool) -> None:
        # Kept alive by its handles: a peer cannot know that the last name for it went away here.
        self.memory: Memory | None = None
        self.registration = registration
        self.offset = offset
        self.handle = handle
        self.revocable = revocable
        # Connections to peers that have mapped it.
        self.importers: set[Connection] = set()
        # Set while there are none; made when somebody waits for that.
        self.returned: threading.Event | None = None

    @property
    def share_id(self) -> int:
        """Native id."""
        return self.handle._share.share_id


class Grant(NamedTuple):
    """What a peer that asked to map a share is given: a descriptor, which the caller closes, or why not."""

    status: Status
    reason: Reason
    fd: int = -1
    offset: int = 0
    nbytes: int = 0
    rights: int = 0


class Shares:
    """All shares of a Context."""

    def __init__(self, engine: Engine, owner: str, url: str, ask: Callable[[Connection, int], None]) -> None:
        """``ask(connection, share_id)`` has the peer asked to unmap; it returns at once."""
        self._engine = engine
        self._owner = owner
        self._url = url
        self._ask = ask
        # Reentrant: a destructor may withdraw a share on a thread that is in here.
        self._lock = threading.RLock()
        self._shares: dict[int, LocalShare] = {}
        # Withdrawn, and not yet given back by all who had mapped them.
        self._leaving: dict[int, LocalShare] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, registration: Registration, offset: int, nbytes: int, rights: int, *, revocable: bool) -> LocalShare:
        """Share a range of a registration."""
        capability = auth.new_capability()
        try:
            share_id = self._engine.share(registration.region, offset, nbytes, rights, capability)
        except NativeError as error:
            raise from_native(*error.args, operation="share") from None
        keys = {"shm": _SHM_MAPPABLE} if registration.shareable and nbytes else {}
        described = Share(
            self._url, self._owner, share_id, capability, nbytes, registration.device, rights, revocable, keys
        )
        share = LocalShare(registration, offset, RemoteBuffer(described, 0, nbytes), revocable=revocable)
        with self._lock:
            self._shares[share_id] = share
        return share

    def grant(self, connection: Connection, share_id: int, capability: bytes) -> Grant:
        """Answer a peer that wants to map a share; on OK it counts as an importer from now on."""
        with self._lock:
            share = self._shares.get(share_id)
            if share is None:
                return Grant(Status.ACCESS_DENIED, Reason.REVOKED)
            described = share.handle._share
            if not auth.same(described.capability, capability):
                return Grant(Status.ACCESS_DENIED, Reason.CAPABILITY)
            region = share.registration.region
            if not share.registration.shareable:
                return Grant(Status.UNSUPPORTED, Reason.NONE)
            try:
                # Reopened, so that a reader's descriptor cannot be mapped for writing.
                mode = os.O_RDWR if described.rights & _WRITE else os.O_RDONLY
                fd = os.open(f"/proc/self/fd/{region.fd}", mode | os.O_CLOEXEC)
            except OSError:
                return Grant(Status.NO_MEMORY, Reason.OUT_OF_DESCRIPTORS)
            share.importers.add(connection)
            offset = share.registration.fd_offset + share.offset
            return Grant(Status.OK, Reason.NONE, fd, offset, described.nbytes, described.rights)

    def given_back(self, connection: Connection, share_id: int) -> None:
        """A peer has unmapped a share."""
        with self._lock:
            share = self._leaving.get(share_id) or self._shares.get(share_id)
            if share is not None:
                self._forget(share, connection)

    def lost(self, connection: Connection) -> None:
        """A peer is gone, and with it whatever it had mapped."""
        with self._lock:
            for share in [*self._shares.values(), *self._leaving.values()]:
                if connection in share.importers:
                    self._forget(share, connection)

    def revoke(self, shares: Sequence[LocalShare], deadline_ns: int) -> None:
        """Take them back.

        Raises:
            RevocationIncomplete: not everyone has let go by the deadline.
        """
        placing = self._withdraw(shares, deadline_ns)
        silent = self._wait(shares, deadline_ns)
        if silent:
            raise RevocationIncomplete(
                f"{len(silent)} peers have not unmapped the memory; it stays allocated until they do or are gone",
                fix="wait and look again with statistics(), or end those processes",
                operation="revoke",
                peers=silent,
            )
        if placing:
            raise RevocationIncomplete(
                "a transfer into the memory is still under way; no new one can begin",
                fix="allow more time with timeout=",
                operation="revoke",
            )

    def withdraw(self, shares: Sequence[LocalShare], timeout: float) -> None:
        """The same without an error, when the memory is closed; 0 seconds waits for nobody, as destructors must."""
        self._withdraw(shares, _AT_ONCE_NS)
        if timeout and any(share.importers for share in shares):
            self._wait(shares, time.monotonic_ns() + int(timeout * 1e9))

    def close(self) -> None:
        """Forget all; the engine is closed, and nobody can reach anything."""
        with self._lock:
            self._shares.clear()
            self._leaving.clear()
        self._engine = closed.ENGINE

    def _withdraw(self, shares: Iterable[LocalShare], deadline_ns: int) -> list[LocalShare]:
        """No peer may begin anything with them from now on; returns those that the engine is still busy with."""
        asked: list[tuple[Connection, int]] = []
        with self._lock:
            for share in shares:
                self._shares.pop(share.share_id, None)
                if share.importers:
                    self._leaving[share.share_id] = share
                    asked += [(connection, share.share_id) for connection in share.importers]
        for connection, share_id in asked:
            self._ask(connection, share_id)
        busy = []
        for share in shares:
            try:
                if not self._engine.revoke(share.share_id, deadline_ns):
                    busy.append(share)
            except NativeError:
                # The engine is closed, and every lane with it.
                continue
        return busy

    def _wait(self, shares: Iterable[LocalShare], deadline_ns: int) -> list[str]:
        """Ids of the peers that have not given a share back by the deadline (0: none)."""
        silent: dict[str, None] = {}
        for share in shares:
            with self._lock:
                if not share.importers:
                    continue
                returned = share.returned = share.returned or threading.Event()
            left = None if deadline_ns == 0 else max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
            if not returned.wait(left):
                with self._lock:
                    silent.update((connection.peer, None) for connection in share.importers)
        return list(silent)

    def _forget(self, share: LocalShare, connection: Connection) -> None:
        share.importers.discard(connection)
        if not share.importers:
            self._leaving.pop(share.share_id, None)
            if share.returned is not None:
                share.returned.set()
