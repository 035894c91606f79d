"""Declares Ordered, which begins the collectives of a group one after the other, and ends all if one fails."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

from zerohop.errors import Closed, ZerohopError
from zerohop.group.collectives.call import Call
from zerohop.group.collectives.plan import SHORT
from zerohop.group.collectives.scratch import Scratch
from zerohop.group.collectives.steps import Steps
from zerohop.group.collectives.turns import Turns
from zerohop.group.messaging import Messaging

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.core.face import Operation, View
    from zerohop.group.channel import Team
    from zerohop.group.collectives.tags import Tag
    from zerohop.group.members import Members

T = TypeVar("T")
P = ParamSpec("P")

# The messages keep the deadline by themselves, with errors that name the rank. The operation ends without them only if
# a busy machine holds them up for longer than this.
_GRACE_NS: Final = 2 * 10**9


# Longest array for which a call waits for a short time itself. Longer ones take so long that a wake-up does not count.
_AT_CALL: Final = 1 << 20


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
        self._posts = Weakly(self._post_send), Weakly(self._post_receive)
        self._scratch = Scratch(Weakly(self._view))
        # Memory for a short message, once there is some.
        self._short: View | None = None

    def _begin_collective(
        self,
        kind: str,
        tag: Tag,
        timeout: float | None,
        work: Callable[[Call], Coroutine[Any, Any, T]],
        *,
        nbytes: int = 0,
        keep: object = None,
    ) -> Operation[T]:
        """Return the Operation of a collective, whose steps are a coroutine; call this once the arguments are checked.

        The steps begin here if all earlier ones have ended: ranks that come at about the same time are then done before
        another thread could be woken. A short collective may hold the call up by a millisecond if others are late.
        """
        self._check()
        deadline_ns = self._deadline(timeout)
        if self._short is None:
            self._short = self._view(np.zeros(SHORT, np.uint8))[:]
        turns = self._turns
        number = turns.take()
        tag = tag._replace(number=number % 256)
        call = Call(self.rank, self.size, number, tag, deadline_ns, *self._posts, self._short, self._scratch)
        steps = Steps(_guarded(turns, call, work), patient=nbytes <= _AT_CALL)
        begun = turns.has_come(number)
        try:
            if begun and steps.begin():
                return self._finished(kind, steps.value)
        except ZerohopError as error:
            error.operation = error.operation or kind
            error.__traceback__ = error.__context__ = error.__cause__ = None
            return self._failed(kind, error)
        except BaseException as error:
            turns.fail(number, _reason_of(error))
            steps.drop()
            turns.leave(number)
            raise
        operation: Operation[T] = self._defer(
            kind,
            deadline_ns + _GRACE_NS if deadline_ns else 0,
            functools.partial(_go_on, turns, call, steps),
            nbytes=nbytes,
            keep=keep,
            at_end=functools.partial(_end, turns, number, steps),
        )
        made_of: Any = getattr(operation, "made_of", None)
        if made_of is not None:  # or the Context was closed meanwhile
            made_of([_Rest(call, steps)])
        self._operations.note(operation)
        return operation

    def _post_send(self, view: Any, rank: int, tag: int | None, left_s: float | None) -> Operation[Any]:
        return self._send(self._collectives, view, rank, tag or 0, left_s)

    def _post_receive(self, view: Any, rank: int, tag: int | None, left_s: float | None) -> Operation[Any]:
        return self._receive(self._collectives, view, rank, tag, left_s)


class _Rest:
    """Tells whether the messages of a collective may still move bytes, also after its Operation was cancelled."""

    def __init__(self, call: Call, steps: Steps[Any]) -> None:
        self._call = call
        self._steps = steps

    @property
    def memory_in_use(self) -> bool:
        """Tell whether bytes may still move."""
        return not self._steps.ended or any(each.memory_in_use for each in self._call.in_flight)


async def _guarded(turns: Turns, call: Call, work: Callable[[Call], Coroutine[Any, Any, T]]) -> T:
    """Do the work. If it fails, end its messages, tell other ranks, and let no later collective begin."""
    try:
        turns.check(call.number)
        try:
            return await work(call)
        except GeneratorExit:  # it is dropped, and must not wait for anything any more
            call.cancel()
            raise
        except BaseException as error:
            turns.fail(call.number, _reason_of(error))
            call.scratch.free(all_of_it=True)
            if not _may_wait(error):
                call.cancel()
                raise
            await call.give_up(error)
            raise
    finally:
        call.scratch.free()
        turns.leave(call.number)


async def _go_on(turns: Turns, call: Call, steps: Steps[T]) -> T:
    await turns.wait_for(call.number)
    return await steps.go_on()


def _end(turns: Turns, number: int, steps: Steps[Any]) -> None:
    """End a collective whose work was cancelled before it has come to the steps. On the control thread."""
    if steps.ended:
        return
    turns.fail(number, ZerohopError("it was cancelled"))
    if not steps.begun:
        steps.drop()
        turns.leave(number)
        return
    import asyncio

    # The steps tell other ranks that this one has given up.
    turns.keep(asyncio.get_running_loop().create_task(steps.cancel()))


def _may_wait(error: BaseException) -> bool:
    """Tell whether the steps may wait for something before they raise an error: not if a signal's handler raised it."""
    import asyncio

    return isinstance(error, (Exception, asyncio.CancelledError))


def _reason_of(error: BaseException) -> ZerohopError:
    """Return what later collectives are told of an error."""
    if isinstance(error, ZerohopError):
        return error
    return ZerohopError(str(error) if isinstance(error, Exception) and str(error) else "it was cancelled")
