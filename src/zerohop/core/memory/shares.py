"""Shares memory of a Context with peers, and ties each share to its Memory."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.config.providers import VERBS
from zerohop.core.base import closed_engine, peer_process
from zerohop.core.control import auth
from zerohop.core.memory.local_share import LocalShare
from zerohop.core.memory.remote_buffer import LAYOUT, RemoteBuffer, Share
from zerohop.core.memory.revocation import Revocation
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop._native import Engine
    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.memory.local_share import Shared
    from zerohop.core.memory.registration import RetainedBuffer
    from zerohop.core.memory.retention import Retention
    from zerohop.core.memory.rights import Rights


_SHM_MAPPABLE: Final = b"m"


class Shares(Revocation):
    """Holds all shares of a Context. Thread-safe."""

    def __init__(self, engine: Engine, owner: str, url: str, retention: Retention) -> None:
        super().__init__(engine)
        self._owner = owner
        self._url = url
        self._retention = retention

    def add(
        self, memory: Shared, offset: int, nbytes: int, rights: int, *, revocable: bool, loose: bool = False
    ) -> RemoteBuffer:
        """Share a range of a Memory; return the handle.

        A ``loose`` share does not keep the Memory alive: it is for a peer that uses it only for transfers of this side,
        which do.
        """
        capability, registration = auth.new_capability(), memory._registration
        keys = {"shm": _SHM_MAPPABLE} if registration.shareable and nbytes else {}
        if memory._layout:
            keys[LAYOUT] = memory._layout
        share_id, share = None, None
        try:
            share_id = self._engine.share(registration.region, offset, nbytes, rights, capability)
            described = Share(
                self._url, self._owner, share_id, capability, nbytes, registration.device, rights, revocable, keys
            )
            share = LocalShare(registration, offset, RemoteBuffer(described, 0, nbytes), revocable=revocable)
            with self._lock:
                self._shares[share_id] = share
                if self._granted.tables:
                    self._granted.grant(share)
            self._belongs(share, memory, loose=loose)
            return share.handle  # noqa: TRY300 - an interrupt here is to be undone, too
        except NativeError as error:
            raise from_native(*error.args, operation="share") from None
        except BaseException:  # of a signal's handler, among others: nobody gets the handle, so nobody could revoke it
            if share is not None:
                self.withdraw([share], 0)
                self.belong_no_more([share], memory)
            elif share_id is not None:
                self._engine.revoke(share_id, time.monotonic_ns())
            raise

    def whole_of(self, memory: Shared, rights: Rights, *, loose: bool = False) -> RemoteBuffer:
        """Return a handle of all of a Memory, which is made once."""
        with self._lock:
            whole = memory._whole.get((rights, loose))
            if whole is None:
                whole = memory._share_loosely(rights) if loose else memory.share(rights)
                memory._whole = {**memory._whole, (rights, loose): whole}
        return whole

    def forget_whole(self, memory: Shared, shares: Sequence[LocalShare]) -> None:
        """Have ``whole_of`` make another handle from now on, because these shares are revoked."""
        revoked = {share.handle._key for share in shares}
        with self._lock:
            memory._whole = {kind: whole for kind, whole in memory._whole.items() if whole._key not in revoked}

    def _belongs(self, share: LocalShare, memory: Shared, *, loose: bool) -> None:
        """Tie a share to its Memory: unless it is loose it keeps the Memory alive; closing that withdraws the share."""
        with self._lock:
            closed_meanwhile = memory._closed
            if not closed_meanwhile:
                if loose:
                    share.loose_memory = weakref.ref(memory)
                else:
                    share.memory = memory
                if isinstance(memory._shares, tuple):
                    memory._shares = {}
                memory._shares[share.handle._key] = share
        if closed_meanwhile:
            memory._check_open()

    def belong_no_more(self, shares: Sequence[LocalShare], memory: Shared) -> None:
        """Untie revoked shares from their Memory."""
        with self._lock:
            if memory._shares:
                for share in shares:
                    memory._shares.pop(share.handle._key, None)

    def revocable(self, memory: Shared) -> list[LocalShare]:
        """Return all shares of a Memory that may be revoked."""
        with self._lock:
            return [share for share in memory._shares.values() if share.revocable] if memory._shares else []

    def of_closing(self, memory: Shared, *, last: bool) -> RetainedBuffer | None:
        """Take over the shares of a Memory that is being closed, and the object that it kept alive.

        Both are taken in one step, so that the shares keep the memory that peers may still touch. The first thread gets
        them, again if it was interrupted; all others get None. ``last``: only this thread has the Memory any more.
        """
        me = threading.get_ident()
        with self._lock:
            if memory._closer not in (None, me) and not last:
                return None
            memory._closer, memory._closed = me, True
            buffer = self._retention.detach(memory, memory._registration)
            if buffer is None:
                memory._closer = None
                return None
            if memory._shares:
                shares = list(memory._shares.values())
                for share in shares:
                    share.keep, share.memory = buffer.keep, None
                buffer.shares = shares
                memory._shares = ()
            return buffer

    def close(self, get_kept: Callable[[object], object]) -> None:
        """Forget all shares, after the engine was closed. Memory that peers have mapped stays until they exit.

        ``get_kept(memory)`` returns the object that a Memory keeps alive.
        """
        peer_process.release_kept()
        with self._lock:
            self._closed = True
            self._granted.close(list(self._shares.values()))
            for share in {**self._shares, **self._leaving, **self._lingering}.values():
                if not share.registration.ours and (left := _left_by(share)):
                    memory = share.open_memory()
                    peer_process.keep_until_exit(left, share.keep if memory is None else get_kept(memory))
            self._shares.clear()
            self._leaving.clear()
            self._lingering.clear()
            self._tell_waiting()
        self._engine = closed_engine.ENGINE


def _left_by(share: LocalShare) -> list[PeerProcess]:
    """Return the processes that may still write to a share of a closed Context."""
    left = [process for _, process in share.lingering]
    for peer, provider in share.importers:
        if provider != VERBS:
            process = peer.process()
            if process is not None:
                left.append(process)
    return left
