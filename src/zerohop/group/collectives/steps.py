"""Runs the steps of a collective: on the thread of the caller at first, and on the control thread if they are held up.

The steps are a coroutine that waits for nothing but ``until(...)``.
"""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from zerohop.core.face import Operation, all_ended, on_event_loop
from zerohop.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")

# Seconds for which a caller waits for one message, and for all of a collective, before the control thread takes the
# steps over. Ranks that come at about the same time save the wake-ups of threads.
_WAIT_S: Final = 300e-6
_STAY_S: Final = 1e-3
# Seconds between looks whether bytes still move, and for which they are awaited after a failure.
_LOOK_S: Final = 1e-3
_SETTLE_S: Final = 0.3


class Turn:
    """Asks for a turn of the event loop, because the steps would hold it for long."""


class Settled:
    """Asks to wait until no bytes move any more for operations that were cancelled, for a short time at most."""

    def __init__(self, operations: list[Operation[Any]]) -> None:
        self.operations = operations

    def done(self) -> bool:
        """Tell whether that is so."""
        return all(each.done() and not each.memory_in_use for each in self.operations)


class First:
    """Asks to wait until at least one of some operations has ended, well or not."""

    def __init__(self, operations: list[Operation[Any]]) -> None:
        self.operations = operations

    def done(self) -> bool:
        """Tell whether one has."""
        return any(each.done() for each in self.operations)


Request = Operation[Any] | Turn | Settled | First


@types.coroutine
def until(request: Request) -> Generator[Request, None, None]:
    """Wait until an operation has ended, well or not; or what else the request asks for."""
    yield request


class Steps(Generic[T]):
    """Holds the steps of one collective, and how far they have come.

    Attributes:
        value: what they have returned, once ``begin`` has returned True.
        begun: whether the first of them has been taken.
        ended: whether they have returned or raised.
    """

    value: T

    def __init__(self, work: Coroutine[Request, None, T], *, patient: bool) -> None:
        """Prepare the steps; ``patient``: ``begin`` may wait for a short time."""
        self._work = work
        self._patient = patient
        self._request: Request | None = None
        self.begun = False
        self.ended = False

    def begin(self) -> bool:
        """Go on until something is to be waited for; tell whether all steps are done. They may raise."""
        patient = self._patient and not on_event_loop()
        ends = time.monotonic() + _STAY_S
        try:
            while True:
                self._request = request = self._advance(None)
                if isinstance(request, Turn):
                    continue
                if not request.done() and not (patient and time.monotonic() < ends and _done_soon(request)):
                    return False
        except StopIteration as stop:
            self.value = stop.value
            return True

    async def go_on(self) -> T:
        """Do what is left, on the control thread. If this is cancelled, so are the steps, which tidy up."""
        return await self._carry_on(None)

    async def cancel(self) -> None:
        """Let the steps tidy up in place of going on, on the control thread."""
        import asyncio

        try:
            await self._carry_on(asyncio.CancelledError())
        except asyncio.CancelledError:
            pass

    async def _carry_on(self, first: BaseException | None) -> T:
        request = self._request
        try:
            while True:
                try:
                    if first is not None:
                        error, first = first, None
                        raise error  # noqa: TRY301 - it takes the way of one that is raised below
                    if request is not None:
                        await _carry_out(request)
                except BaseException as error:  # noqa: BLE001 - the steps handle it, and raise it again
                    request = self._advance(error)
                else:
                    request = self._advance(None)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def drop(self) -> None:
        """End the steps where they are; they wait for nothing any more. Another thread that has them now ends them."""
        try:
            self._work.close()
        except ValueError:
            return
        self.ended = True

    def _advance(self, error: BaseException | None) -> Request:
        """Let the steps go on until the next request; raise ``error`` in them unless it is None."""
        self.begun = True
        try:
            return self._work.send(None) if error is None else self._work.throw(error)
        except BaseException:
            self.ended = True
            raise


async def _carry_out(request: Request) -> None:
    import asyncio

    if isinstance(request, Turn):
        await asyncio.sleep(0)
    elif isinstance(request, Settled):
        ends = time.monotonic() + _SETTLE_S
        while not request.done() and time.monotonic() < ends:  # noqa: ASYNC110 - no event tells when a lane is done with memory
            await asyncio.sleep(_LOOK_S)
    elif isinstance(request, First):
        await _first_ended(request.operations)
    elif not request.done():
        await all_ended([request])


async def _first_ended(operations: list[Operation[Any]]) -> None:
    import asyncio

    waits = [asyncio.ensure_future(all_ended([each])) for each in operations]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


def _done_soon(request: Operation[Any] | Settled | First) -> bool:
    """Wait for a short time; tell whether what is asked for has come true."""
    if isinstance(request, Settled):
        return False
    operation = request.operations[0] if isinstance(request, First) else request
    try:
        operation.exception(_WAIT_S)
    except DeadlineExceeded:
        pass
    except BaseException as error:  # the operation was cancelled, and the steps find out; or it is a signal handler's
        if not operation.done() or isinstance(error, KeyboardInterrupt):
            raise
    return request.done()
