"""Declares Messaging, the messages of a group between its ranks."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from zerohop.config.checks import as_int, check_int
from zerohop.core.face import Face, OperationGroup, send_to_mailbox
from zerohop.errors import PeerLost, ZerohopError
from zerohop.group import direct
from zerohop.group.channel import Channel, Team, Use
from zerohop.group.deadlines import deadline_of, with_grace
from zerohop.group.messages import Found, GroupReceive
from zerohop.group.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Connection, Link, Local, Operation
    from zerohop.group.members import Members

T = TypeVar("T")


class Messaging(Face):
    """Connects this process to the ranks of a group, and sends and receives their messages.

    Attributes:
        rank: this process's number, from 0.
        size: the number of ranks.
        ranks: their numbers in the program.
    """

    rank: int
    size: int

    def _open(self, members: Members, team: Team) -> None:
        self._operations = OperationGroup(self._core)
        self._finders = count(1)
        # Not a method: objects that keep it would keep this one, whose destructor ends it.
        self._deadline_by = functools.partial(deadline_of, self._core, self._timeout_s)
        self._team = team
        self._members = members
        # Ranks that know that this one may wait for them.
        self._greeted = {team.rank}
        self._messages = self._channel(Use.MESSAGES)
        self._collectives = self._channel(Use.COLLECTIVES)
        notices = self._channel(Use.NOTICES)
        self._channels = [self._messages, self._collectives, notices]
        for channel in self._channels:
            channel.open(self._core)
        self._subgroups: defaultdict[tuple[int, ...], count[int]] = defaultdict(count)
        self.ranks = tuple(team.ranks)
        members.attach(tuple(self._channels))
        left = functools.partial(_note_left, weakref.ref(self))
        begin = functools.partial(_begin, weakref.ref(self))
        self._notices = Notices(notices, members, self._greeted, left, begin)
        begin(self._notices.listen)

    def _close_channels(self) -> None:
        self._notices.leave()
        channels = tuple(self._channels)
        self._members.detach(channels)
        for channel in channels:
            channel.close()

    def _channel(self, use: Use, number: int = 0) -> Channel:
        return Channel(self._core, self._team, use, self._members.secret_of, self._greeted, self._timeout_ns, number)

    def connect(self, rank: int, *, timeout: float | None = None) -> Operation[Connection]:
        """Connect to the Context of a rank; value: the Connection, of which there is one per rank.

        It waits until that rank has made its Group. Errors of the Operation name the rank.

        Args:
            rank: the number of the rank, which may be this one's.
            timeout: seconds; None: the Group's.

        Raises:
            ValueError: no such rank.
            Closed: the Group is closed. From the Operation: DeadlineExceeded (the rank has not arrived, or does not
                answer), PeerLost (it is gone, or the store is); other errors are those of ``Context.connect``.
        """
        rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        self._check()
        deadline_ns = self._deadline(timeout)
        there = self._team.ranks[rank]
        known = self._members.known(there)
        if known is not None:
            return self._finished("connect", known)

        work = functools.partial(named, self._team, rank, self._members.reach, there, deadline_ns)
        operation = self._defer("connect", with_grace(deadline_ns), work)
        self._operations.note(operation)
        return operation

    def _send(
        self,
        channel: Channel,
        source: Local,
        rank: int,
        tag: int,
        timeout: float | None,
        *,
        nowait: bool = False,
        later: bool = False,
        header: bytes | None = None,
    ) -> Operation[int]:
        """Do ``send`` for the messages of a channel.

        If there is no room, ``nowait`` raises WouldBlock. With ``later`` the message takes its turn on the control
        thread, behind those that do and ahead of all later ones.
        """
        self._check()
        view = self._view(source)
        if channel is self._messages:
            header = direct.offer(self._lend, source, view)
        members, there = self._members, self._team.ranks[rank]
        connection = members.ready(there)
        if connection is not None and not later:
            envelope = channel.envelope(rank, tag)
            channel.reach(rank, connection, members.queued)
            return send_to_mailbox(connection, view, envelope, self._timeout_of(timeout), nowait=nowait, header=header)
        deadline_ns = self._deadline(timeout)
        end = members.queue(there)
        work = functools.partial(
            named, self._team, rank, members.send_queued, channel, view, rank, tag, deadline_ns, end, header
        )
        try:
            operation = self._defer(
                "send",
                with_grace(deadline_ns),
                work,
                nbytes=view.nbytes,
                keep=view,
                wants_operation=True,
                at_end=end,
            )
        except BaseException:
            end()
            raise
        self._operations.note(operation)
        return operation

    def _receive(
        self,
        channel: Channel,
        into: Local | None,
        source: int | None,
        tag: int | None,
        timeout: float | None,
        operation: Any = None,
        found: Found | None = None,
        *,
        finds_described: bool = False,
    ) -> Operation[Any]:
        """Do ``recv`` for the messages of a channel, or post an Operation that finds a message."""
        self._check()
        deadline_ns = 0 if timeout is None else self._deadline(timeout)
        receive = GroupReceive(source, channel.losses) if operation is None else operation
        finder = 0 if found is None else found.number
        posted: Operation[Any] = channel.mailbox.receive(
            receive, into, source, tag, deadline_ns, finder, finds_described=finds_described
        )
        if source is not None:
            there = self._team.ranks[source]
            connection = self._members.known(there)
            if connection is not None:
                channel.reach(source, connection, self._members.queued)
            wants_watch = self._members.wants_watch(there)
            if wants_watch or self._notices.wants_greeting(source):
                self._notices.begin(functools.partial(self._notices.greet, source))
        return posted

    def note_left(self, number: int) -> None:
        """End what waits for a rank that has left the group. On the control thread."""
        if number < self.size:
            there = self._team.ranks[number]
            gone = PeerLost(f"rank {there}: it has left the group", operation="recv", ranks=(there,))
            for channel in tuple(self._channels):
                channel.lose(there, gone)

    def note_work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work on the control thread that nobody waits for, and that ends with the group."""
        self._operations.note(self._defer("connect", 0, work))

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        """End what waits for a rank that is lost. On the control thread."""
        self._members.peer_lost(link, error)

    def _check(self) -> None:
        self._core.check_process()
        self._operations.check()
        self._core.check_open()


def _note_left(group: weakref.ref[Messaging], number: int) -> None:
    """End what waits for a rank that has left a group, which this does not keep alive. On the control thread."""
    itself = group()
    if itself is not None:
        itself.note_left(number)


def _begin(group: weakref.ref[Messaging], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do work of a group, which this does not keep alive."""
    itself = group()
    if itself is not None:
        itself.note_work(work)


async def named(team: Team, rank: int, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Do work of Members, whose errors name a rank by its number in the program; raise them with that in the group."""
    try:
        return await work(*args)
    except ZerohopError as error:
        raise team.named(error, rank) from None
