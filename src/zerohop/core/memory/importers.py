"""Knows which peers have imported which shares of a Context.

A peer that was lost may still write to memory that it has mapped, until its process ends.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from zerohop._native import Reason, Status
from zerohop.config.providers import VERBS
from zerohop.core.base import peer_process
from zerohop.core.control import auth
from zerohop.core.memory.granted import Granted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop._native import Engine, Grants
    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.memory.local_share import Importer, LocalShare, Peer


class Importers:
    """Holds the tables of shares and their importers. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The lock is reentrant, because a destructor may withdraw a share on a thread that holds it.
        self._lock = threading.RLock()
        # Threads that wait for something to be given back, each by a lock of its own that it cannot get.
        self._waiting: set[threading.Lock] = set()
        self._shares: dict[int, LocalShare] = {}
        # Withdrawn shares that some peers have not given back yet.
        self._leaving: dict[int, LocalShare] = {}
        # Shares, withdrawn or not, to which the processes of lost peers may still write.
        self._lingering: dict[int, LocalShare] = {}
        # The tables by which peers of this host use shares without asking.
        self._granted = Granted()
        self._closed = False
        # Processes whose end calls `sweep`.
        self._watched: weakref.WeakSet[PeerProcess] = weakref.WeakSet()
        peer_process.release_kept()

    def _wait_until(self, over: Callable[[], bool], seconds: float | None) -> None:
        """Wait until ``over()``, which is asked with the lock held, or for so many seconds; None: without limit.

        A condition of Python's does not serve here: it is Python code, and a signal's handler that raises in the middle
        of it leaves the lock held for ever, or held by nobody.
        """
        bell = threading.Lock()
        bell.acquire()
        until = math.inf if seconds is None else time.monotonic() + seconds
        self._waiting.add(bell)
        try:
            while True:
                with self._lock:
                    if over():
                        return
                left = until - time.monotonic()
                if left <= 0:
                    return
                bell.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            self._waiting.discard(bell)

    def _tell_waiting(self) -> None:
        for bell in self._waiting.copy():
            try:
                bell.release()
            except RuntimeError:  # it has been told already
                pass

    def __len__(self) -> int:
        return len(self._shares)

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

    def open_file(self, share: LocalShare, *, writable: bool) -> int:
        """Return a descriptor of the file that a share lies in, which the caller closes; -1 if there is none.

        Raises:
            OSError: the file cannot be opened in this way, or no descriptor is left.
        """
        with self._lock:  # the region stays open as long as the share is in the table
            if not share.registration.shareable or share.share_id not in self._shares:
                return -1
            # The file is opened anew, so that a reader's descriptor cannot be mapped for writing.
            mode = os.O_RDWR if writable else os.O_RDONLY
            return os.open(f"/proc/self/fd/{share.registration.region.fd}", mode | os.O_CLOEXEC)

    def given_back(self, peer: Peer, provider: str, share_ids: Sequence[int]) -> None:
        """Note that a peer has given shares back."""
        gone: list[LocalShare] = []
        with self._lock:
            for share_id in share_ids:
                share = self._leaving.get(share_id) or self._shares.get(share_id)
                if share is not None and not self._granted.keeps(peer, provider, share):
                    self._forget(share, (peer, provider), gone)
        self._release(gone)

    def begin_granting(self, peer: Peer) -> tuple[Grants, list[LocalShare]] | None:
        """Make a peer's table of grants, and return it with the shares that are to be granted; None if there is none.

        The newest share comes first, because it is probably used next. The caller closes the table's descriptor once
        the peer has one.
        """
        with self._lock:
            table = self._granted.begin(peer)
            return None if table is None else (table, list(reversed(self._shares.values())))

    def grant(self, peer: Peer, shares: Sequence[LocalShare]) -> None:
        """Let a peer take shares that there were before its table, unless they were withdrawn since."""
        with self._lock:
            self._granted.grant_to(peer, [share for share in shares if share.share_id in self._shares])

    def stop_granting(self, peer: Peer) -> None:
        """Let a peer take nothing more without asking; what it has taken counts as imported from now on."""
        with self._lock:
            self._granted.stop(peer, list(self._shares.values()))

    def holders(self, provider: str) -> dict[Any, list[int]]:
        """Return each peer that has imported shares over this provider, with the ids of the shares."""
        holders: dict[Any, list[int]] = {}
        with self._lock:
            for share in self._shares.values():
                for peer, _ in importers_of(share, provider):
                    holders.setdefault(peer, []).append(share.share_id)
        return holders

    def mapped_by(self, peer: Peer) -> dict[str, list[int]]:
        """Return the ids of the shares that a peer has mapped, by provider."""
        mapped: dict[str, list[int]] = {}
        with self._lock:
            for share in [*self._shares.values(), *self._leaving.values()]:
                for importer, provider in share.importers:
                    if importer is peer and provider != VERBS:
                        mapped.setdefault(provider, []).append(share.share_id)
        return mapped

    def lost(self, peer: Peer) -> None:
        """Forget a lost peer's imports, and watch its process, which may still write to memory that it has mapped."""
        peer_process.release_kept()
        process: PeerProcess | None = None
        gone: list[LocalShare] = []
        with self._lock:
            self._granted.stop(peer, list(self._shares.values()))
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
            self._granted.forget(peer)
        self._release(gone)
        if process is not None and process not in self._watched:
            self._watched.add(process)
            process.watch(self.sweep)

    def sweep(self) -> None:
        """Release memory that only processes could touch which have ended since."""
        peer_process.release_kept()
        gone: list[LocalShare] = []
        with self._lock:
            for share_id, share in self._lingering.copy().items():
                share.lingering = [each for each in share.lingering if not each[1].has_exited()]
                if not share.lingering:
                    del self._lingering[share_id]
                    gone.append(share)
                    self._tell_waiting()
        self._release(gone)

    def kept(self) -> list[object]:
        """Return the objects kept for peers that have not given back memory that was closed."""
        with self._lock:
            return [share.keep for share in self._leaving.values()]

    def _forget(self, share: LocalShare, importer: Importer, gone: list[LocalShare]) -> None:
        """Forget an importer. If it was the last one of a withdrawn share, append the share to ``gone``."""
        share.importers.discard(importer)
        if not share.importers and self._leaving.pop(share.share_id, None) is not None:
            gone.append(share)
        self._tell_waiting()

    def _release(self, shares: Sequence[LocalShare]) -> None:
        """Release the objects of shares that no peer can touch; called without the lock, because destructors run."""
        with self._lock:
            # A share that has left all of these tables does not come back.
            homes = self._shares, self._leaving, self._lingering
            loose = [share for share in shares if not any(share.share_id in home for home in homes)]
        for share in loose:
            share.keep = None


def importers_of(share: LocalShare, provider: str) -> list[Importer]:
    """Return the importers of a share over one provider."""
    return [importer for importer in share.importers if importer[1] == provider]
