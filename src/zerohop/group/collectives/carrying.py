"""Carries the steps of a collective to their end: in its turn, on the control thread, and also if they fail."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zerohop.errors import ZerohopError
from zerohop.group.collectives.failed import StepsFailed
from zerohop.group.collectives.tags import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from zerohop.group.collectives.call import Call
    from zerohop.group.collectives.steps import Steps
    from zerohop.group.collectives.turns import Turns

T = TypeVar("T")

_SEE: Final = "see what these ranks do, or allow more time with timeout="


class Rest:
    """Tells whether the messages of a collective may still move bytes, also after its Operation was cancelled."""

    def __init__(self, call: Call, steps: Steps[Any]) -> None:
        self._call = call
        self._steps = steps

    @property
    def memory_in_use(self) -> bool:
        """Tell whether bytes may still move."""
        may_go_on = not self._steps.ended and not self._call.abandoned
        return may_go_on or any(each.memory_in_use for each in self._call.in_flight)


async def guarded(
    turns: Turns, call: Call, work: Callable[[Call], Coroutine[Any, Any, T]], refuse: Callable[[], None]
) -> T:
    """Do the work. If it fails, end its messages, tell other ranks, and let no later collective begin.

    ``refuse`` is called then: nothing that other ranks send for collectives of the group is received any more.
    """
    try:
        turns.check(call.number)
        try:
            return await work(call)
        except GeneratorExit as error:  # it is dropped, and must not wait for anything any more
            turns.fail(call.number, reason_of(error))
            call.cancel()
            quietly(refuse)
            raise
        except BaseException as error:
            failure, rank, shown = Failure.OTHER, call.rank, error
            if isinstance(error, StepsFailed):
                failure, rank, shown = error.failure, error.rank, error.error
            if isinstance(shown, ZerohopError):
                shown.operation = call.kind
            turns.fail(call.number, reason_of(shown))
            call.scratch.free(all_of_it=True)
            if not _may_wait(error):
                call.cancel()
                quietly(refuse)
                raise
            missing = await call.give_up(failure, rank)
            quietly(refuse)
            if missing is not None and missing.ranks and isinstance(shown, ZerohopError):
                shown.reason, shown.fix, shown.ranks = missing.text, _SEE, missing.ranks
                turns.fail(call.number, shown, again=True)
            raise shown from None
    finally:
        call.scratch.free()
        turns.leave(call.number)


def quietly(refuse: Callable[[], None]) -> None:
    """Refuse what other ranks send for collectives, unless that is done already."""
    with contextlib.suppress(ZerohopError):  # the Group is gone, and refuses everything
        refuse()


async def go_on(turns: Turns, call: Call, steps: Steps[T]) -> T:
    """Take the steps that are left, once it is the turn of the collective. On the control thread."""
    try:
        await turns.wait_for(call.number, call.left_s)
    except ZerohopError as error:
        turns.fail(call.number, error)
        asking = call.ask()
        if asking is not None:
            missing = await asking
            if missing.ranks:
                error.reason, error.ranks = f"{error.reason}: {missing.text}", missing.ranks
        raise
    return await steps.go_on()


def end(core: Any, turns: Turns, call: Call, steps: Steps[Any]) -> None:
    """End a collective whose Operation has ended before its steps. On the control thread."""
    if steps.ended:
        return
    turns.fail(call.number, ZerohopError("it was cancelled"))
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # this is the caller's thread, which could not hand the work over
        loop = None
    if loop is None or core.closed:  # nothing would wait for a new task
        steps.drop()
        turns.leave(call.number)
        return
    call.abandoned = not steps.begun
    turns.keep(loop.create_task(_give_up(turns, call, steps)))


async def _give_up(turns: Turns, call: Call, steps: Steps[Any]) -> None:
    """Let the steps tell other ranks that this one has given up. Those that have not begun do so when it is their turn.

    Other ranks hear of it then at once, and not when their time is up.
    """
    if not call.abandoned:
        await steps.cancel()
        return
    try:
        await turns.wait_for(call.number)
        await steps.go_on()
    except ZerohopError:
        pass
    finally:  # also if the Context is closed meanwhile
        if not steps.ended:
            steps.drop()
        turns.leave(call.number)


def _may_wait(error: BaseException) -> bool:
    """Tell whether the steps may wait for something before they raise an error: not if a signal's handler raised it."""
    import asyncio

    return isinstance(error, (Exception, asyncio.CancelledError))


def reason_of(error: BaseException) -> ZerohopError:
    """Return what later collectives are told of an error."""
    if isinstance(error, ZerohopError):
        return error
    return ZerohopError(str(error) if isinstance(error, Exception) and str(error) else "it was cancelled")
