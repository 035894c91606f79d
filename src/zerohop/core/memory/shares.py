"""What this Context has shared, who has imported it, and how it is taken back.

Peers that have mapped the memory give it back by agreement. Those whose NICs reach it are asked too, so that a peer
that is well loses no lane; but the key is taken from all of them soon after, whatever they do.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base import closed_engine, peer_process
from zerohop.core.control import auth
from zerohop.core.memory.remote_buffer import RemoteBuffer, Share
from zerohop.errors import RevocationIncomplete, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from zerohop._native import Engine
    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.memory.memory import Memory
    from zerohop.core.memory.registration import Registration, RetainedBuffer
    from zerohop.core.transfers.connection import Connection

    # Who has imported a share, and over which provider: a peer may have it twice.
    Importer: TypeAlias = tuple[Connection, str]

_READ, _WRITE = 1, 2
_SHM_MAPPABLE = b"m"
# A deadline that has passed: ask, and do not wait.
_AT_ONCE_NS = 1
_NS = 1e9
VERBS = "verbs"
# How long peers may take, at most, to stop using a key before it becomes invalid, and with it their lane.
_MAX_GRACE_S = 0.5


class LocalShare:
    """One share of our memory."""

    __slots__ = ("handle", "importers", "keep", "lingering", "memory", "offset", "registration", "revocable")

    def __init__(self, registration: Registration, offset: int, handle: RemoteBuffer, *, revocable: bool) -> None:
        # Kept alive by its handles: a peer cannot know that the last name for it went away here.
        self.memory: Memory | None = None
        # Once that is closed: what stays until all who imported the share have let go.
        self.keep: object = None
        # Peers that are lost, had mapped it, and may still write: their ids, and their processes.
        self.lingering: list[tuple[str, PeerProcess]] = []
        self.registration = registration
        self.offset = offset
        self.handle = handle
        self.revocable = revocable
        self.importers: set[Importer] = set()

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

    def __init__(
        self,
        engine: Engine,
        owner: str,
        url: str,
        ask: Callable[[Connection, str, int], None],
    ) -> None:
        """``ask(connection, provider, share_id)`` has the peer asked to give it back; it returns at once."""
        self._engine = engine
        self._owner = owner
        self._url = url
        self._ask = ask
        # Reentrant: a destructor may withdraw a share on a thread that is in here.
        self._lock = threading.RLock()
        self._given_back = threading.Condition(self._lock)
        self._shares: dict[int, LocalShare] = {}
        # Withdrawn, and not yet given back by all who had imported them.
        self._leaving: dict[int, LocalShare] = {}
        # Withdrawn or not, and not yet safe from peers that were lost.
        self._haunted: dict[int, LocalShare] = {}
        self._closed = False
        peer_process.release_kept()

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

    def belongs(self, share: LocalShare, memory: Memory) -> None:
        """The share keeps the Memory, which takes it back when it is closed."""
        with self._lock:
            closed_meanwhile = memory._closed
            if not closed_meanwhile:
                share.memory = memory
                if isinstance(memory._shares, tuple):
                    memory._shares = [share]
                else:
                    memory._shares.append(share)
        if closed_meanwhile:
            self.withdraw([share], 0)
            memory._check_open()

    def belong_no_more(self, shares: Sequence[LocalShare], memory: Memory) -> None:
        """They have been revoked."""
        revoked = set(shares)
        with self._lock:
            memory._shares = [each for each in memory._shares if each not in revoked] or ()

    def of_closing(self, memory: Memory) -> tuple[Sequence[LocalShare], RetainedBuffer | None]:
        """What a Memory has shared and what it kept alive, the caller's now; None for all threads but the first.

        Together, so that the shares keep what peers may still touch.
        """
        with self._lock:
            buffer = memory._context._retention.detach(memory)
            if buffer is None:
                return (), None
            shares, memory._shares = memory._shares, ()
            for share in shares:
                share.keep, share.memory = buffer.keep, None
            return shares, buffer

    def has(self, share_id: int) -> bool:
        """Whether it can be used: it has not been withdrawn."""
        return share_id in self._shares

    def admit(
        self, connection: Connection, provider: str, share_id: int, capability: bytes
    ) -> LocalShare | tuple[Status, Reason]:
        """The share that a peer wants to import, or why it may not; it counts as an importer from now on."""
        with self._lock:
            share = self._shares.get(share_id)
            if share is None:
                return Status.ACCESS_DENIED, Reason.REVOKED
            if not auth.same(share.handle._share.capability, capability):
                return Status.ACCESS_DENIED, Reason.CAPABILITY
            share.importers.add((connection, provider))
            return share

    def grant(self, connection: Connection, provider: str, share_id: int, capability: bytes) -> Grant:
        """Answer a peer that wants to map a share; on OK it counts as an importer from now on."""
        with self._lock:
            share = self.admit(connection, provider, share_id, capability)
            if isinstance(share, tuple):
                return Grant(*share)
            described = share.handle._share
            if not share.registration.shareable:
                share.importers.discard((connection, provider))
                return Grant(Status.UNSUPPORTED, Reason.NONE)
            try:
                # Reopened, so that a reader's descriptor cannot be mapped for writing.
                mode = os.O_RDWR if described.rights & _WRITE else os.O_RDONLY
                fd = os.open(f"/proc/self/fd/{share.registration.region.fd}", mode | os.O_CLOEXEC)
            except OSError:
                share.importers.discard((connection, provider))
                return Grant(Status.NO_MEMORY, Reason.OUT_OF_DESCRIPTORS)
            offset = share.registration.fd_offset + share.offset
            return Grant(Status.OK, Reason.NONE, fd, offset, described.nbytes, described.rights)

    def given_back(self, connection: Connection, provider: str, share_id: int) -> None:
        """A peer has let go of a share."""
        gone: list[LocalShare] = []
        with self._lock:
            share = self._leaving.get(share_id) or self._shares.get(share_id)
            if share is not None:
                self._forget(share, (connection, provider), gone)
        self._let_go(gone)

    def holders(self, provider: str) -> list[tuple[Connection, int]]:
        """Who has imported what by that provider, by the ids of the shares."""
        with self._lock:
            return [
                (connection, share.share_id)
                for share in self._shares.values()
                for connection, _ in _importers(share, provider)
            ]

    def mapped_by(self, connection: Connection) -> list[tuple[str, int]]:
        """What a peer has mapped: by which provider, and the ids of the shares."""
        with self._lock:
            return [
                (provider, share.share_id)
                for share in [*self._shares.values(), *self._leaving.values()]
                for importer, provider in share.importers
                if importer is connection and provider != VERBS
            ]

    def lost(self, connection: Connection, process_of_peer: Callable[[], PeerProcess | None] | None) -> None:
        """A peer is gone, and with it whatever it had imported; what it had mapped, its process may still write to."""
        peer_process.release_kept()
        process: PeerProcess | None = None
        gone: list[LocalShare] = []
        with self._lock:
            asked = process_of_peer is None
            for share in [*self._shares.values(), *self._leaving.values()]:
                importers = [importer for importer in share.importers if importer[0] is connection]
                if any(provider != VERBS for _, provider in importers):
                    if not asked and process_of_peer is not None:
                        process, asked = process_of_peer(), True
                    if process is not None:
                        share.lingering.append((connection.peer, process))
                        self._haunted[share.share_id] = share
                for importer in importers:
                    self._forget(share, importer, gone)
        self._let_go(gone)
        if process is not None:
            process.watch(self.sweep)

    def sweep(self) -> None:
        """Let go of what only peers could touch whose processes have ended since."""
        peer_process.release_kept()
        gone: list[LocalShare] = []
        with self._lock:
            for share_id, share in list(self._haunted.items()):
                share.lingering = [each for each in share.lingering if not each[1].has_exited()]
                if not share.lingering:
                    del self._haunted[share_id]
                    gone.append(share)
                    self._given_back.notify_all()
        self._let_go(gone)

    def revoke(self, shares: Sequence[LocalShare], deadline_ns: int) -> None:
        """Take them back.

        Raises:
            RevocationIncomplete: not everyone has let go by the deadline.
        """
        grace = _MAX_GRACE_S if deadline_ns == 0 else min(_MAX_GRACE_S, _seconds_until(deadline_ns) / 2)
        placing = self._withdraw(shares, deadline_ns, grace)
        silent = self._wait(shares, None if deadline_ns == 0 else _seconds_until(deadline_ns), lost_too=True)
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
        deadline = time.monotonic_ns() + int(timeout * _NS)
        self._withdraw(shares, _AT_ONCE_NS, min(_MAX_GRACE_S, timeout / 2))
        if timeout:
            self._wait(shares, _seconds_until(deadline), lost_too=False)
        # The caller has it, too, so that nothing goes here.
        self._let_go(shares)

    def kept(self) -> list[object]:
        """What is kept for peers that have not let go of memory that was closed."""
        with self._lock:
            return [share.keep for share in self._leaving.values()]

    def close(self, get_kept: Callable[[Memory], object]) -> None:
        """Forget all; the engine is closed, and nobody can reach anything but what is mapped: that stays.

        ``get_kept(memory)``: what that keeps alive.
        """
        peer_process.release_kept()
        with self._lock:
            self._closed = True
            for share in {**self._shares, **self._leaving, **self._haunted}.values():
                if not share.registration.ours and (left := _left_by(share)):
                    peer_process.keep_until_exit(left, share.keep if share.memory is None else get_kept(share.memory))
            self._shares.clear()
            self._leaving.clear()
            self._haunted.clear()
            self._given_back.notify_all()
        self._engine = closed_engine.ENGINE

    def _withdraw(self, shares: Sequence[LocalShare], deadline_ns: int, grace_s: float) -> list[LocalShare]:
        """No peer may begin anything with them from now on; returns those that the engine is still busy with.

        Before that, peers whose NICs reach them have ``grace_s`` seconds to stop.
        """
        asked: list[tuple[Connection, str, int]] = []
        with self._lock:
            for share in shares:
                self._shares.pop(share.share_id, None)
                if share.importers:
                    self._leaving[share.share_id] = share
                    asked += [(connection, provider, share.share_id) for connection, provider in share.importers]
        for each in asked:
            self._ask(*each)
        if grace_s:
            with self._given_back:
                self._given_back.wait_for(lambda: not any(_importers(share, VERBS) for share in shares), grace_s)
        busy = []
        for share in shares:
            try:
                if not self._engine.revoke(share.share_id, deadline_ns):
                    busy.append(share)
            except NativeError:
                # The engine is closed, and every lane with it.
                continue
        gone: list[LocalShare] = []
        with self._lock:
            # Their keys are good for nothing any more.
            for share in shares:
                for importer in _importers(share, VERBS):
                    self._forget(share, importer, gone)
        self._let_go(gone)
        return busy

    def _wait(self, shares: Sequence[LocalShare], seconds: float | None, *, lost_too: bool) -> list[str]:
        """Ids of the peers that have not given a share back in that time (None: however long it takes).

        ``lost_too``: also of those that were lost and may still write. It ends with the Context.
        """

        def silent() -> dict[str, None]:
            peers = [connection.peer for share in shares for connection, _ in share.importers]
            if lost_too:
                peers += [peer for share in shares for peer, process in share.lingering if not process.has_exited()]
            return dict.fromkeys(peers)

        with self._given_back:
            self._given_back.wait_for(lambda: self._closed or not silent(), seconds)
            return list(silent())

    def _forget(self, share: LocalShare, importer: Importer, gone: list[LocalShare]) -> None:
        """``gone`` gets it where nobody has imported it any more: for `_let_go`, without the lock."""
        share.importers.discard(importer)
        if not share.importers and self._leaving.pop(share.share_id, None) is not None:
            gone.append(share)
        self._given_back.notify_all()

    def _let_go(self, shares: Sequence[LocalShare]) -> None:
        """Of what those keep that no peer can touch any more. Without the lock: that may have a destructor."""
        with self._lock:
            # One that has left all of these does not come back.
            homes = self._shares, self._leaving, self._haunted
            loose = [share for share in shares if not any(share.share_id in home for home in homes)]
        for share in loose:
            share.keep = None


def _importers(share: LocalShare, provider: str) -> list[Importer]:
    return [importer for importer in share.importers if importer[1] == provider]


def _left_by(share: LocalShare) -> list[PeerProcess]:
    """Of a Context that is closed: who may still write to it, as has been seen, or where there was no time to look."""
    left = [process for _, process in share.lingering]
    for connection, provider in share.importers:
        if provider != VERBS:
            session = connection._session
            process = session.process() if session is not None else peer_process.unknown_process()
            if process is not None:
                left.append(process)
    return left


def _seconds_until(deadline_ns: int) -> float:
    return max(0.0, (deadline_ns - time.monotonic_ns()) / _NS)
