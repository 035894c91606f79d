"""Reaches the ranks of a program: connects at first use, keeps messages in order until then, and knows who is lost.

Ranks are numbers of the program here. All groups of a program share its Members. Coroutines, and functions that are not
said to be for any thread, run on the control thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerohop.core.face import send_to_mailbox, wait_with_timeout
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ZerohopError, copy_of
from zerohop.group.messages import GO_ON, SHORT, end_quietly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from zerohop.core.face import Connection, Context, Link, Memory, Operation, View
    from zerohop.group.channel import Channel
    from zerohop.group.roll import InThread, Roll


class Members:
    """Holds the Connections to the ranks that are used.

    Attributes:
        queued: how many messages to each rank are still to be posted: no later one may overtake them.
    """

    def __init__(
        self, context: Context, roll: Roll, rank: int, secret: int, in_thread: Callable[[], InThread | None]
    ) -> None:
        """Reach ranks of the roll. ``rank`` and ``secret``: this process's. ``in_thread()``: None once all is over."""
        self._context = context
        self._roll = roll
        self._in_thread = in_thread
        self._connections: dict[int, Connection] = {}
        self._secrets = {rank: secret}
        self._lost: dict[int, ZerohopError] = {}
        self._last_lost: Link | None = None
        # Replaced as a whole, under the lock.
        self._channels: tuple[Channel, ...] = ()
        self.queued: Counter[int] = Counter()  # changed under the lock
        # Reentrant: a destructor that the garbage collector runs within a call detaches channels.
        self._lock = threading.RLock()
        # One message to a rank is posted after the other.
        self._turns: dict[int, asyncio.Lock] = {}
        self._watched: set[int] = set()

    def known(self, rank: int) -> Connection | None:
        """Return the Connection to a rank if there is one that is alive. Any thread."""
        connection = self._connections.get(rank)
        return connection if connection is not None and connection.alive else None

    def ready(self, rank: int) -> Connection | None:
        """Return the Connection to a rank if a message can be posted to it at once. Any thread."""
        return None if self.queued[rank] else self.known(rank)

    def reached(self) -> list[int]:
        """Return the ranks that were reached. Any thread."""
        return list(self._connections)

    def has_found(self, rank: int) -> bool:
        """Tell whether it is known how a rank is reached. Any thread."""
        return rank in self._roll.found or rank in self._connections

    def rank_of(self, peer: str) -> int | None:
        """Return the rank whose Context has this id; None if no such rank was reached. Any thread."""
        found = (rank for rank, connection in self._connections.copy().items() if connection.peer == peer)
        return next(found, None)

    def secret_of(self, rank: int) -> int:
        """Return the secret of a rank that was reached, from which the numbers of its mailboxes follow. Any thread."""
        return self._secrets[rank]

    def attach(self, channels: tuple[Channel, ...]) -> None:
        """Tell these channels of losses. Any thread."""
        with self._lock:
            self._channels += channels
        for rank, error in self._lost.copy().items():
            for channel in channels:
                channel.lose(rank, error)

    def detach(self, channels: tuple[Channel, ...]) -> None:
        """Tell these channels nothing any more. Any thread."""
        with self._lock:
            self._channels = tuple(each for each in self._channels if each not in channels)

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
            connecting = self._context.connect(entry.url, timeout=left_s)
            try:
                connection: Connection = await connecting
            except asyncio.CancelledError:
                end_quietly(connecting)  # it may have failed just now, and the caller has given it up
                raise
        except ZerohopError as error:
            why = self._lost.get(rank)
            if isinstance(error, PeerLost):
                self._roll.forget(rank)
                if why is not None:  # it was reached before, so that the advice for a first connection is no use
                    error = replace(copy_of(why), operation=error.operation, fix=GO_ON)
            if error.ranks:
                raise error from None
            raise replace(error, reason=f"rank {rank}: {error.reason}", ranks=(rank,)) from None
        if rank in self._lost:
            del self._lost[rank]
            for channel in self._channels:
                channel.restore(rank)
        self._secrets[rank] = entry.secret
        self._connections[rank] = connection
        if not connection.alive:  # it was lost before this side knew whose it is
            gone = PeerLost(f"rank {rank}: it is gone", peer=connection.peer, operation="connect", ranks=(rank,))
            self._lose(rank, gone)
            raise gone
        return connection

    def queue(self, rank: int) -> Callable[[], None]:
        """Count a message to a rank that ``send_queued`` will post. Any thread.

        Returns:
            a function that ends the count; a second call does nothing.
        """
        with self._lock:
            self.queued[rank] += 1
        counted = True

        def end() -> None:
            nonlocal counted
            with self._lock:
                if counted:
                    counted = False
                    self.queued[rank] -= 1

        return end

    async def send_queued(
        self,
        channel: Channel,
        view: Memory | View,
        number: int,
        tag: int,
        deadline_ns: int,
        posted: Callable[[], None],
        header: bytes | None,
        operation: Any,
    ) -> int:
        """Send a message once the rank is reached and all earlier ones are posted; call ``posted`` then.

        ``number``: the rank, as a number of the channel's group; ``operation``: the Operation that stands for it.
        """
        rank = channel.team.ranks[number]
        async with self._in_turn(rank, deadline_ns) as connection:
            left_s = max(0.0, self._roll.left_s(deadline_ns))
            envelope = channel.envelope(number, tag)
            sending = operation.carry(lambda: send_to_mailbox(connection, view, envelope, left_s, header=header))
            posted()
        try:
            sent: int = await sending
        except asyncio.CancelledError:
            end_quietly(sending)  # it may have failed just now, and the caller has given it up
            raise
        return sent

    async def send_many_queued(
        self,
        channel: Channel,
        sources: tuple[bytes | Memory | View, ...],
        number: int,
        tag: int,
        deadline_ns: int,
        posted: Callable[[], None],
        operation: Any,
    ) -> None:
        """Send messages as ``send_queued`` does one. The first error ends it, and all that are under way."""
        rank = channel.team.ranks[number]
        under_way: list[Operation[int]] = []
        operation.made_of(under_way)
        sent = 0
        try:
            async with self._in_turn(rank, deadline_ns) as connection:
                envelope = channel.envelope(number, tag)
                channel.reach(number, connection, self.queued)
                while sent < len(sources):
                    left_s = max(0.0, self._roll.left_s(deadline_ns))
                    post = functools.partial(channel.post_sends, sources[sent:], number, tag, left_s, False, True)
                    sent += operation.go_on(post)
                    if sent < len(sources):  # there is no room, or it is none of those that go together
                        source = sources[sent]
                        send = functools.partial(send_to_mailbox, connection, source, envelope, left_s)
                        operation.go_on(lambda post=send: under_way.append(post()))
                        sent += 1
                        if isinstance(source, bytes) or source.nbytes <= SHORT:
                            await under_way[-1]  # over once there was room
                            under_way.pop()
                posted()
            for each in under_way:
                await each
        finally:
            for each in under_way:
                end_quietly(each)

    @contextlib.asynccontextmanager
    async def _in_turn(self, rank: int, deadline_ns: int) -> AsyncIterator[Connection]:
        """Wait until all earlier messages to a rank are posted, and reach it.

        Raises:
            DeadlineExceeded: they are not; or as of ``reach``.
        """
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
                raise DeadlineExceeded(early, fix="allow more time with timeout=", ranks=(rank,)) from None
            yield await self.reach(rank, deadline_ns)
        finally:
            if held:
                turn.release()

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
            self._lose(rank, error)

    def peer_lost(self, link: Link, error: ZerohopError) -> None:
        """End what waits for the ranks of a peer that is lost. A second call for it does nothing."""
        if self._last_lost is link:
            return
        self._last_lost = link
        channels = self._channels
        ranks = {rank for rank, connection in self._connections.items() if connection.peer == link.peer}
        # The peer may have sent in one group, and be waited for in another.
        ranks = ranks.union(*[channel.forget(link, ranks) for channel in channels])
        for channel in channels:
            for rank in channel.forget(link, ranks):
                self._forget(rank, error)
                channel.lose(rank, error)

    def _lose(self, rank: int, error: ZerohopError) -> None:
        self._forget(rank, error)
        for channel in self._channels:
            channel.lose(rank, error)

    def _forget(self, rank: int, error: ZerohopError) -> None:
        self._lost[rank] = copy_of(error)  # without its traceback, which would keep the operation that has failed
        self._watched.discard(rank)
        self._roll.forget(rank)
