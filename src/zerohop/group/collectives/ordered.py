"""Declares Ordered, which begins the collectives of a group one after the other, and ends all if one fails."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

import numpy as np

from zerohop.core.face import keep_reached, on_event_loop
from zerohop.errors import Closed, WouldBlock, ZerohopError
from zerohop.group.collectives.call import NO_ROOM, NOT_RECEIVED, Call
from zerohop.group.collectives.carrying import Rest, end, go_on, guarded, quietly, reason_of
from zerohop.group.collectives.meetings import fits
from zerohop.group.collectives.scratch import Scratch
from zerohop.group.collectives.shared import Shared
from zerohop.group.collectives.steps import Steps
from zerohop.group.collectives.turns import Turns
from zerohop.group.deadlines import with_grace
from zerohop.group.messages import SHORT
from zerohop.group.messaging import Messaging

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Memory, Operation, RemoteBuffer, View
    from zerohop.group.channel import Team
    from zerohop.group.collectives.attendance import Missing
    from zerohop.group.collectives.call import Begun
    from zerohop.group.collectives.meetings import Meeting
    from zerohop.group.collectives.tags import Tag
    from zerohop.group.members import Members

T = TypeVar("T")
# Takes the steps of a collective at once.
Express: TypeAlias = "Callable[[int, float | None], Callable[[Call], Coroutine[Any, Any, T]] | None]"
P = ParamSpec("P")

# Longest array for which a call waits for a short time itself. Longer ones take so long that a wake-up does not count.
_AT_CALL: Final = 1 << 20
# Nanoseconds for which a thread waits in one native call for a message of another rank.
_EXCHANGE_NS: Final = 100_000


class Weakly(Generic[P, T]):
    """Calls a method of a group, which it does not keep alive."""

    __slots__ = ("_method",)

    def __init__(self, method: Callable[P, T]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the method, or raise Closed."""
        method = self._method()
        if method is None:
            raise Closed("the Group is gone", fix="keep it until its collectives have ended")
        return method(*args, **kwargs)


class Ordered(Messaging):
    """Runs collectives in the order of their calls."""

    def _open(self, members: Members, team: Team) -> None:
        super()._open(members, team)
        self._turns = Turns()
        # It needs asyncio, which comes with the first Context.
        from zerohop.group.collectives.attendance import Attendance

        self._attendance = Attendance(self._notices, self._turns, self.rank, self.size)
        self._posts = (
            Weakly(self._post_send),
            Weakly(self._post_receive),
            Weakly(self._post_exchange),
            Weakly(self._ask),
        )
        self._refuse = Weakly(self._refuse_collectives)
        self._scratch = Scratch(Weakly(self._view))
        self._shared = Shared(self.rank, self.size, Weakly(self._offer_memory), Weakly(self._map_memory))
        # Memory for a short message, and for none, once there is some.
        self._short: View | None = None
        self._nothing: View | None = None

    def _close_channels(self) -> None:
        self._shared.close()
        super()._close_channels()

    def _begin_collective(
        self,
        kind: str,
        tag: Tag,
        timeout: float | None,
        work: Callable[[Call], Coroutine[Any, Any, T]],
        *,
        nbytes: int = 0,
        keep: object = None,
        path: Any = None,
        value: Any = None,
        meeting: Meeting | None = None,
        express: Express[T] | None = None,
    ) -> Operation[T]:
        """Return the Operation of a collective, whose steps are a coroutine; call this once the arguments are checked.

        If all earlier ones have ended, this thread takes the first steps itself: when the other ranks call at about the
        same time, that is quicker than to wake the control thread. For this a short collective may hold the call up by
        a millisecond. The control thread does what is left.

        ``meeting`` is what the ranks do instead if they share memory and it fits there. ``express`` takes all steps
        within this call, without a Call, if they share none and no rank is late; it takes the number and the seconds or
        None, and returns the steps that are left, or None. The value of both is ``value``.
        """
        self._check()
        deadline_ns = self._deadline(timeout)
        if self._short is None:
            self._short = self._view(np.zeros(SHORT, np.uint8))[:]
            self._nothing = self._short[:0]
        agreed, meetings = self._shared.agreed, self._shared.meetings  # in this order: see _agree
        if path is not None or (meeting is not None and not fits(kind, meeting, self.size)):  # a path is NCCL's
            meeting = None
        if meetings is not None and meeting is not None:
            express = meetings.at_once(meeting, value)
        elif not agreed:
            express = None
        turns = self._turns
        taken: list[int] = []
        steps: Steps[T] | None = None
        operation: Operation[T] | None = None
        # All later collectives wait for a number that was taken, so nothing that is raised may lose it.
        try:
            turns.take(taken)
            number = taken[0]
            if express is not None and turns.may_begin(number) and not on_event_loop():
                left = express(number, timeout)
                if left is None:
                    turns.leave(number)
                    return self._finished(kind, value, nbytes=nbytes, path=path)
                work, meeting = left, None
            call = Call(
                kind,
                self.rank,
                self.size,
                number,
                tag._replace(number=number % 256),
                deadline_ns,
                *self._posts,
                self._short,
                self._scratch,
            )
            steps = Steps(
                guarded(turns, call, functools.partial(self._shared.carry_out, work, meeting, value), self._refuse),
                patient=nbytes <= _AT_CALL,
            )
            if turns.has_come(number) and steps.begin():
                return self._finished(kind, steps.value, nbytes=nbytes, path=path)
            operation = self._defer(
                kind,
                with_grace(deadline_ns),
                functools.partial(go_on, turns, call, steps),
                nbytes=nbytes,
                keep=keep,
                path=path,
                at_end=functools.partial(end, self._core, turns, call, steps),
            )
            made_of: Any = getattr(operation, "made_of", None)
            if made_of is not None:  # or the Context was closed meanwhile
                made_of([Rest(call, steps)])
            self._operations.note(operation)
            return operation  # noqa: TRY300 - within, because a signal's handler may raise here too
        except BaseException as error:
            if steps is not None and steps.ended and isinstance(error, ZerohopError):  # the steps have failed
                error.operation = kind
                error.__traceback__ = error.__context__ = error.__cause__ = None
                return self._failed(kind, error)
            if taken:
                turns.fail(taken[0], reason_of(error))
                if operation is not None:  # its end tells the other ranks
                    operation.cancel()
                else:
                    if steps is not None:
                        steps.drop()
                    else:
                        quietly(self._refuse)  # other ranks may have heard of the call
                    turns.leave(taken[0])
            raise

    def _post_send(self, view: Any, rank: int, tag: int, left_s: float) -> tuple[Operation[Any], str]:
        quick = self._collectives.post_send(view, rank, tag, left_s)
        if quick is not None:
            return quick, NOT_RECEIVED
        there = self._team.ranks[rank]
        if_late = NOT_RECEIVED
        if self._members.ready(there) is None:
            # Before there is a connection, the error says why there is none.
            if_late = NO_ROOM if self._members.known(there) is not None else ""
        try:
            return self._send(self._collectives, view, rank, tag, left_s, nowait=True), if_late
        except WouldBlock:
            return self._send(self._collectives, view, rank, tag, left_s, later=True), NO_ROOM

    def _refuse_collectives(self) -> None:
        """Refuse the messages of other ranks, which would else wait to be received until their time is up."""
        self._collectives.mailbox.close()

    def _post_receive(self, view: Any, rank: int, left_s: float | None) -> Operation[Any]:
        quick = self._collectives.post_recv(view, rank, None, left_s)
        return self._receive(self._collectives, view, rank, None, left_s) if quick is None else quick

    def _post_exchange(self, view: Any, to: int, into: Any, sender: int, nbytes: int, tag: int, left_s: float) -> Begun:
        spin_ns = 0 if on_event_loop() else _EXCHANGE_NS
        return self._collectives.exchange(view, to, into, sender, nbytes, tag, left_s, spin_ns)

    def _signal_at_once(self, to: int, sender: int, tag: int, timeout: float | None) -> Begun:
        """Send no bytes to a rank, and wait for a short time for what another one sends likewise."""
        return self._collectives.exchange(self._nothing, to, self._short, sender, 0, tag, timeout, _EXCHANGE_NS)

    def _offer_memory(self, nbytes: int) -> tuple[Memory, RemoteBuffer]:
        memory = self.context.alloc(nbytes)
        return memory, self._lend(memory, "rw", once=False)[0]

    def _map_memory(self, remote: RemoteBuffer, left_s: float) -> Operation[tuple[Any, object] | None]:
        operation = self._defer("map", self._deadline(left_s), functools.partial(Weakly(self._mapped), remote))
        self._operations.note(operation)
        return operation

    async def _mapped(self, remote: RemoteBuffer) -> tuple[Any, object] | None:
        assert self._short is not None
        route, reached = await self._reach(self._short, remote)
        return None if reached is None else (reached, keep_reached(route))

    def _ask(self, number: int, kind: str) -> Operation[Missing]:
        operation = self._defer("ask", 0, functools.partial(self._attendance.missing, number, kind))
        self._operations.note(operation)
        return operation
