"""Shares memory with peers, knows which peers have imported it, and takes it back.

A peer that has mapped the memory is asked to unmap it. A peer whose NICs reach the memory is asked to stop, too, so
that its lane survives; soon after, the key becomes invalid, whatever the peer does.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base import closed_engine, peer_process
from zerohop.core.control import auth
from zerohop.core.memory.local_share import Grant, LocalShare
from zerohop.core.memory.remote_buffer import RemoteBuffer, Share
from zerohop.errors import RevocationIncomplete, from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop._native import Engine
    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.memory.local_share import Importer, Peer, Shared
    from zerohop.core.memory.registration import Registration, RetainedBuffer
    from zerohop.core.memory.retention import Retention


_READ, _WRITE = 1, 2
_SHM_MAPPABLE = b"m"
# This deadline has passed: the peers are asked, and no call waits for them.
_AT_ONCE_NS = 1
_NS = 1e9
VERBS = "verbs"
# Seconds that peers have, at most, to stop using a key before it becomes invalid, which breaks their lane.
_MAX_GRACE_S = 0.5


class Shares:
    """Holds all shares of a Context. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        owner: str,
        url: str,
        retention: Retention,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._url = url
        self._retention = retention
        # The lock is reentrant, because a destructor may withdraw a share on a thread that holds it.
        self._lock = threading.RLock()
        self._given_back = threading.Condition(self._lock)
        self._shares: dict[int, LocalShare] = {}
        # Withdrawn shares that some peers have not given back yet.
        self._leaving: dict[int, LocalShare] = {}
        # Shares, withdrawn or not, to which the processes of lost peers may still write.
        self._lingering: dict[int, LocalShare] = {}
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

    def belongs(self, share: LocalShare, memory: Shared) -> None:
        """Tie a share to its Memory: the share keeps the Memory alive, and closing the Memory withdraws the share."""
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

    def belong_no_more(self, shares: Sequence[LocalShare], memory: Shared) -> None:
        """Untie revoked shares from their Memory."""
        revoked = set(shares)
        with self._lock:
            memory._shares = [each for each in memory._shares if each not in revoked] or ()

    def of_closing(self, memory: Shared) -> tuple[Sequence[LocalShare], RetainedBuffer | None]:
        """Take over the shares of a Memory that is being closed, and the object that it kept alive.

        Both are taken in one step, so that the shares keep the memory that peers may still touch. The first thread gets
        them; the buffer is None for all others.
        """
        with self._lock:
            buffer = self._retention.detach(memory, memory._registration)
            if buffer is None:
                return (), None
            shares, memory._shares = memory._shares, ()
            for share in shares:
                share.keep, share.memory = buffer.keep, None
            return shares, buffer

    def has(self, share_id: int) -> bool:
        """Tell whether a share can be used, because it has not been withdrawn."""
        return share_id in self._shares

    def admit(self, peer: Peer, provider: str, share_id: int, capability: bytes) -> LocalShare | tuple[Status, Reason]:
        """Return the share that a peer wants to import, or why it may not; count the peer as an importer."""
        with self._lock:
            share = self._shares.get(share_id)
            if share is None:
                return Status.ACCESS_DENIED, Reason.REVOKED
            if not auth.same(share.handle._share.capability, capability):
                return Status.ACCESS_DENIED, Reason.CAPABILITY
            share.importers.add((peer, provider))
            return share

    def grant(self, peer: Peer, provider: str, share_id: int, capability: bytes) -> Grant:
        """Answer a peer that wants to map a share; on OK the peer counts as an importer from now on."""
        with self._lock:
            share = self.admit(peer, provider, share_id, capability)
            if isinstance(share, tuple):
                return Grant(*share)
            described = share.handle._share
            if not share.registration.shareable:
                share.importers.discard((peer, provider))
                return Grant(Status.UNSUPPORTED, Reason.NONE)
            try:
                # The file is opened anew, so that a reader's descriptor cannot be mapped for writing.
                mode = os.O_RDWR if described.rights & _WRITE else os.O_RDONLY
                fd = os.open(f"/proc/self/fd/{share.registration.region.fd}", mode | os.O_CLOEXEC)
            except OSError:
                share.importers.discard((peer, provider))
                return Grant(Status.NO_MEMORY, Reason.OUT_OF_DESCRIPTORS)
            offset = share.registration.fd_offset + share.offset
            return Grant(Status.OK, Reason.NONE, fd, offset, described.nbytes, described.rights)

    def given_back(self, peer: Peer, provider: str, share_id: int) -> None:
        """Note that a peer has given a share back."""
        gone: list[LocalShare] = []
        with self._lock:
            share = self._leaving.get(share_id) or self._shares.get(share_id)
            if share is not None:
                self._forget(share, (peer, provider), gone)
        self._release(gone)

    def holders(self, provider: str) -> list[tuple[Any, int]]:
        """Return each peer that has imported a share over this provider, with the id of the share."""
        with self._lock:
            return [
                (peer, share.share_id) for share in self._shares.values() for peer, _ in _importers(share, provider)
            ]

    def mapped_by(self, peer: Peer) -> list[tuple[str, int]]:
        """Return provider and id of each share that a peer has mapped."""
        with self._lock:
            return [
                (provider, share.share_id)
                for share in [*self._shares.values(), *self._leaving.values()]
                for importer, provider in share.importers
                if importer is peer and provider != VERBS
            ]

    def lost(self, peer: Peer) -> None:
        """Forget a lost peer's imports, and watch its process, which may still write to memory that it has mapped."""
        peer_process.release_kept()
        process: PeerProcess | None = None
        gone: list[LocalShare] = []
        with self._lock:
            asked = False
            for share in [*self._shares.values(), *self._leaving.values()]:
                importers = [importer for importer in share.importers if importer[0] is peer]
                if any(provider != VERBS for _, provider in importers):
                    if not asked:
                        process, asked = peer.process(), True
                    if process is not None:
                        share.lingering.append((peer.peer, process))
                        self._lingering[share.share_id] = share
                for importer in importers:
                    self._forget(share, importer, gone)
        self._release(gone)
        if process is not None:
            process.watch(self.sweep)

    def sweep(self) -> None:
        """Release memory that only processes could touch which have ended since."""
        peer_process.release_kept()
        gone: list[LocalShare] = []
        with self._lock:
            for share_id, share in list(self._lingering.items()):
                share.lingering = [each for each in share.lingering if not each[1].has_exited()]
                if not share.lingering:
                    del self._lingering[share_id]
                    gone.append(share)
                    self._given_back.notify_all()
        self._release(gone)

    def revoke(self, shares: Sequence[LocalShare], deadline_ns: int) -> None:
        """Take shares back from all peers.

        Raises:
            RevocationIncomplete: some peers have not given them back by the deadline.
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
        """Take shares back, without an error, because their memory is closed.

        ``timeout`` is in seconds; a destructor passes 0, and then this waits for no peer.
        """
        deadline = time.monotonic_ns() + int(timeout * _NS)
        self._withdraw(shares, _AT_ONCE_NS, min(_MAX_GRACE_S, timeout / 2))
        if timeout:
            self._wait(shares, _seconds_until(deadline), lost_too=False)
        # The caller holds the kept object, too, so that no destructor runs here.
        self._release(shares)

    def kept(self) -> list[object]:
        """Return the objects kept for peers that have not given back memory that was closed."""
        with self._lock:
            return [share.keep for share in self._leaving.values()]

    def close(self, get_kept: Callable[[object], object]) -> None:
        """Forget all shares, after the engine was closed. Memory that peers have mapped stays until they exit.

        ``get_kept(memory)`` returns the object that a Memory keeps alive.
        """
        peer_process.release_kept()
        with self._lock:
            self._closed = True
            for share in {**self._shares, **self._leaving, **self._lingering}.values():
                if not share.registration.ours and (left := _left_by(share)):
                    peer_process.keep_until_exit(left, share.keep if share.memory is None else get_kept(share.memory))
            self._shares.clear()
            self._leaving.clear()
            self._lingering.clear()
            self._given_back.notify_all()
        self._engine = closed_engine.ENGINE

    def _withdraw(self, shares: Sequence[LocalShare], deadline_ns: int, grace_s: float) -> list[LocalShare]:
        """Let no peer begin a transfer with these shares; return the shares that the engine is still busy with.

        Before that, peers whose NICs reach the memory have ``grace_s`` seconds to stop.
        """
        asked: list[tuple[Peer, str, int]] = []
        with self._lock:
            for share in shares:
                self._shares.pop(share.share_id, None)
                if share.importers:
                    self._leaving[share.share_id] = share
                    asked += [(peer, provider, share.share_id) for peer, provider in share.importers]
        for peer, provider, share_id in asked:
            peer.ask_back(provider, share_id)
        if grace_s:
            with self._given_back:
                self._given_back.wait_for(lambda: not any(_importers(share, VERBS) for share in shares), grace_s)
        busy = []
        for share in shares:
            try:
                if not self._engine.revoke(share.share_id, deadline_ns):
                    busy.append(share)
            except NativeError:  # the engine is closed, and every lane with it
                continue
        gone: list[LocalShare] = []
        with self._lock:
            # The engine has made the keys of NICs invalid, so peers have nothing to give back.
            for share in shares:
                for importer in _importers(share, VERBS):
                    self._forget(share, importer, gone)
        self._release(gone)
        return busy

    def _wait(self, shares: Sequence[LocalShare], seconds: float | None, *, lost_too: bool) -> list[str]:
        """Wait until peers have given shares back, and return the ids of the peers that have not.

        The wait lasts ``seconds`` at most, or without limit for None, and ends when the Context is closed. With
        ``lost_too`` the result includes lost peers that may still write.
        """

        def silent() -> dict[str, None]:
            peers = [peer.peer for share in shares for peer, _ in share.importers]
            if lost_too:
                peers += [peer for share in shares for peer, process in share.lingering if not process.has_exited()]
            return dict.fromkeys(peers)

        with self._given_back:
            self._given_back.wait_for(lambda: self._closed or not silent(), seconds)
            return list(silent())

    def _forget(self, share: LocalShare, importer: Importer, gone: list[LocalShare]) -> None:
        """Forget an importer. If it was the last one of a withdrawn share, append the share to ``gone``."""
        share.importers.discard(importer)
        if not share.importers and self._leaving.pop(share.share_id, None) is not None:
            gone.append(share)
        self._given_back.notify_all()

    def _release(self, shares: Sequence[LocalShare]) -> None:
        """Release the objects of shares that no peer can touch; called without the lock, because destructors run."""
        with self._lock:
            # A share that has left all of these tables does not come back.
            homes = self._shares, self._leaving, self._lingering
            loose = [share for share in shares if not any(share.share_id in home for home in homes)]
        for share in loose:
            share.keep = None


def _importers(share: LocalShare, provider: str) -> list[Importer]:
    return [importer for importer in share.importers if importer[1] == provider]


def _left_by(share: LocalShare) -> list[PeerProcess]:
    """Return the processes that may still write to a share of a closed Context."""
    left = [process for _, process in share.lingering]
    for peer, provider in share.importers:
        if provider != VERBS:
            process = peer.process()
            if process is not None:
                left.append(process)
    return left


def _seconds_until(deadline_ns: int) -> float:
    return max(0.0, (deadline_ns - time.monotonic_ns()) / _NS)
