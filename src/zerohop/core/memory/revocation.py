"""Takes shares back from peers.

A peer that has mapped the memory is asked to end its transfers, and to unmap it with the last handle of it. A peer
whose NICs reach the memory is asked to stop, too, so that its lane survives; soon after, the key becomes invalid,
whatever the peer does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.config.providers import VERBS
from zerohop.core.memory.importers import Importers, importers_of
from zerohop.errors import RevocationIncomplete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.memory.local_share import LocalShare, Peer

# A deadline that has passed: peers are asked, and no call waits for them.
_AT_ONCE_NS: Final = 1
_NS: Final = 1e9
# Seconds that peers have, at most, to stop using a key before it becomes invalid, which breaks their lane.
_MAX_GRACE_S: Final = 0.5


class Revocation(Importers):
    """Ends shares, because their owner revokes them or closes their memory."""

    def revoke(self, shares: Sequence[LocalShare], deadline_ns: int) -> None:
        """Take shares back from all peers; ``deadline_ns`` is on the monotonic clock, 0: none.

        Raises:
            RevocationIncomplete: at the deadline peers still have them mapped, or a transfer is still under way.
        """
        grace = _MAX_GRACE_S if deadline_ns == 0 else min(_MAX_GRACE_S, _seconds_until(deadline_ns) / 2)
        busy = self._withdraw(shares, deadline_ns, grace)
        silent = self._wait(shares, None if deadline_ns == 0 else _seconds_until(deadline_ns), lost_too=True)
        if silent:
            raise RevocationIncomplete(
                f"{len(silent)} peers have not unmapped the memory; it stays allocated until they do or are gone",
                fix="wait and look again with statistics(), or end those processes",
                operation="revoke",
                peers=silent,
            )
        if busy:
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

    def _withdraw(self, shares: Sequence[LocalShare], deadline_ns: int, grace_s: float) -> list[LocalShare]:
        """Let no peer begin a transfer with these shares; return the shares that the engine is still busy with.

        Before that, peers whose NICs reach the memory have ``grace_s`` seconds to stop.
        """
        asked: defaultdict[tuple[Peer, str], list[int]] = defaultdict(list)
        with self._lock:
            for share in shares:
                # In this order: wherever a signal's handler cuts it short, the share is in a table with its importers.
                self._granted.revoke(share)
                if share.importers:
                    self._leaving[share.share_id] = share
                    for importer in share.importers:
                        asked[importer].append(share.share_id)
                self._shares.pop(share.share_id, None)
        for (peer, provider), share_ids in asked.items():
            peer.ask_back(provider, share_ids)
        if grace_s:
            self._wait_until(lambda: not any(importers_of(share, VERBS) for share in shares), grace_s)
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
                for importer in importers_of(share, VERBS):
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

        self._wait_until(lambda: self._closed or not silent(), seconds)
        with self._lock:
            return list(silent())


def _seconds_until(deadline_ns: int) -> float:
    return max(0.0, (deadline_ns - time.monotonic_ns()) / _NS)
