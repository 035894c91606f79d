"""Runs coroutines as far as they come without waiting, which spares most of them a task.

Python 3.12 has tasks that begin at once; this works with the older ones, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


class Rest(Generic[T]):
    """Awaits the rest of a coroutine that waits for a future. It is awaited once, by a task of the same loop."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for, self._waits_for = self._waits_for, None
        sent, failure = None, None
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001  # a cancellation, too: the coroutine decides on it
                    failure = error
                else:
                    failure = None
                try:
                    waits_for = self._work.send(sent) if failure is None else self._work.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
        finally:
            # The traceback of an error has this frame, which is to have neither the error nor a future that has it.
            del waits_for, failure


def begin(work: Coroutine[Any, Any, T]) -> T | Rest[T]:
    """Begin a coroutine; return its result, or what awaits the rest if it waits for a future. Raises what it raises.

    Until it waits for the first time it runs outside of any task, so that it must not ask for the task that it is in.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(work, waits_for)
