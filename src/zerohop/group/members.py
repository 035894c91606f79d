"""Reaches the ranks of a Group: connects at first use, keeps messages in order until then, and knows who is lost.

Coroutines, and what is not said to be for any thread, run on the control thread.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from zerohop.core.face import send_to_mailbox, wait_with_timeout
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ZerohopError, copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Connection, Context, Link, Mailbox, Memory, View
    from zerohop.group.roll import InThread, Roll


class Members:
    """Holds the Connections to the ranks that are used.

    Attributes:
        losses: why each lost rank is gone.
    """

    def __init__(
        self, context: Context, roll: Roll, mailbox: Mailbox, rank: int, in_thread: Callable[[], InThread | None]
    ) -> None:
        """Reach ranks of the roll; ``rank``: this process's own. ``in_thread()`` is None once the Group is gone."""
        self._context = context
        self._roll = roll
        self._mailbox = mailbox
        self._rank = rank
        self._in_thread = in_thread
        self.losses: dict[int, ZerohopError] = {}
        self._connections: dict[int, Connection] = {}
        self._mailboxes: dict[int, int] = {}
        # Messages to each rank that are still to be posted: no later one may overtake them. Changed under the lock.
        self._queued: Counter[int] = Counter()
        self._lock = threading.Lock()
        # One message to a rank is posted after the other.
        self._turns: dict[int, asyncio.Lock] = {}
        self._watched: set[int] = set()

    def known(self, rank: int) -> Connection | None:
        """Return the Connection to a rank if there is one that is alive. Any thread."""
        connection = self._connections.get(rank)
        return connection if connection is not None and connection.alive else None

    def ready(self, rank: int) -> Connection | None:
        """Return the Connection to a rank if a message can be posted to it at once. Any thread."""
        return None if self._queued[rank] else self.known(rank)

    def envelope(self, rank: int, tag: int) -> tuple[int, int, int]:
        """Return the envelope of a message to a rank that was reached. Any thread."""
        return self._mailboxes[rank], self._rank, tag

    async def reach(self, rank: int, deadline_ns: int) -> Connection:
        """Find a rank, and connect to it.

        Raises:
            DeadlineExceeded, PeerLost, ...: as of ``Group.connect``; each names the rank.
        """
        known = self.known(rank)
        if known is not None:
            return known
        try:
            entry = await self._roll.entry_of(rank, deadline_ns, self._in_thread)
            left_s = max(0.0, self._roll.left_s(deadline_ns))
            connection: Connection = await self._context.connect(entry.url, timeout=left_s)
        except ZerohopError as error:
            if isinstance(error, PeerLost):
                self._roll.forget(rank)
            if error.reason.startswith(f"rank {rank} "):
                raise
            raise replace(error, reason=f"rank {rank}: {error.reason}") from None
        if self.losses.pop(rank, None) is not None:
            self._mailbox.restore(rank)
        self._mailboxes[rank] = entry.mailbox
        self._connections[rank] = connection
        if not connection.alive:  # it was lost before this side knew whose it is
            gone = PeerLost(f"rank {rank}: it is gone", peer=connection.peer, operation="connect")
            self._lose(rank, gone)
            raise gone
        return connection

    def queue(self, rank: int) -> Callable[[], None]:
        """Count a message to a rank that ``send_queued`` will post. Any thread.

        Returns:
            a function that ends the count; a second call does nothing.
        """
        with self._lock:
            self._queued[rank] += 1
        counted = True

        def end() -> None:
            nonlocal counted
            with self._lock:
                if counted:
                    counted = False
                    self._queued[rank] -= 1

        return end

    async def send_queued(
        self, view: Memory | View, rank: int, tag: int, deadline_ns: int, posted: Callable[[], None]
    ) -> int:
        """Send a message once the rank is reached and all earlier ones are posted; call ``posted`` then."""
        turn = self._turns.setdefault(rank, asyncio.Lock())
        left_s = max(0.0, self._roll.left_s(deadline_ns))
        held = False

        async def take_turn() -> None:
            nonlocal held
            await turn.acquire()
            held = True

        try:
            try:
                await wait_with_timeout(take_turn(), None if left_s == math.inf else left_s)
            except TimeoutError:
                early = f"rank {rank}: earlier messages are not on their way yet"
                raise DeadlineExceeded(early, fix="allow more time with timeout=") from None
            connection = await self.reach(rank, deadline_ns)
            left_s = max(0.0, self._roll.left_s(deadline_ns))
            operation = send_to_mailbox(connection, view, self.envelope(rank, tag), left_s)
            posted()
        finally:
            if held:
                turn.release()
        return await operation

    def wants_watch(self, rank: int) -> bool:
        """Tell whether to call ``watch``, because a receive waits for a rank that was not reached. Any thread."""
        with self._lock:
            if rank in self._watched or self.known(rank) is not None:
                return False
            self._watched.add(rank)
            return True

    async def watch(self, rank: int) -> None:
        """Connect to a rank that a receive waits for, so that its end is noticed. It is lost if that fails."""
        try:
            await self.reach(rank, 0)
        except Closed:
            pass
        except ZerohopError as error:
            self._watched.discard(rank)
            self._lose(rank, error)

    def peer_lost(self, link: Link, error: ZerohopError) -> None:
        """End what waits for the ranks of a peer that is lost."""
        ranks = [rank for rank, connection in self._connections.items() if connection.peer == link.peer]
        for rank in self._mailbox.forget(link, ranks):
            self._watched.discard(rank)
            self._roll.forget(rank)
            self._lose(rank, error)

    def _lose(self, rank: int, error: ZerohopError) -> None:
        self.losses[rank] = copy_of(error)
        self._mailbox.lose(rank)
