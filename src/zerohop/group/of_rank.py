"""Declares OfRank, an Operation with one rank whose errors name that rank."""

# ruff: noqa: D102, SLF001 - Operation documents its methods; those with an underscore are of another Operation here

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from zerohop.core.face import Finished, Operation
from zerohop.errors import ZerohopError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from zerohop._native import CompletionQueue
    from zerohop.core.face import Explanation

T = TypeVar("T")


def of_rank(operation: Operation[T], rank: int | Callable[[], int | None]) -> Operation[T]:
    """Return an Operation whose errors name a rank; ``rank()`` finds out which it is if there is an error."""
    if type(operation) is Finished or isinstance(operation, OfRank):  # most short messages have ended well at once
        return operation
    return OfRank(operation, rank)


class OfRank(Operation[T]):
    """Represents an Operation of the Context, which knows of no ranks, for a caller who does."""

    __slots__ = ("_core", "_operation", "_rank", "nbytes")

    def __init__(self, operation: Operation[T], rank: int | Callable[[], int | None]) -> None:
        self._core = operation._core
        self._operation = operation
        self._rank = rank
        self.nbytes = operation.nbytes

    def done(self) -> bool:
        return self._operation.done()

    def result(self, timeout: float | None = None) -> T:
        try:
            return self._operation.result(timeout)
        except ZerohopError as error:
            self._name(error)
            raise
        finally:
            del self  # which has its error, whose traceback has this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            error = self._operation.exception(timeout)
        except ZerohopError as late:
            self._name(late)
            raise
        if isinstance(error, ZerohopError):
            self._name(error)
        return error

    def cancel(self) -> bool:
        return self._operation.cancel()

    @property
    def memory_in_use(self) -> bool:
        return self._operation.memory_in_use

    def __await__(self) -> Generator[Any, None, T]:
        try:
            return (yield from self._operation.__await__())
        except ZerohopError as error:
            self._name(error)
            raise
        finally:
            del self  # which has its error, whose traceback has this frame

    def explain(self) -> Explanation:
        return self._operation.explain()

    def _name(self, error: ZerohopError) -> None:
        """Name the rank in an error, unless the error names one."""
        if error.ranks:
            return
        rank = self._rank() if callable(self._rank) else self._rank
        if rank is not None:
            error.reason = f"rank {rank}: {error.reason}"
            error.ranks = (int(rank),)

    def _poll(self) -> bool:
        return self._operation._poll()

    def _hold(self, device: int, number: int) -> None:
        self._operation._hold(device, number)

    def _progress(self) -> str:
        return self._operation._progress()

    def _join(self, timeout: float | None) -> None:
        self._operation._join(timeout)

    def _spin(self) -> bool:
        return self._operation._spin()

    def _arm(self, queue: CompletionQueue, token: int) -> bool:
        return self._operation._arm(queue, token)

    def _disarm(self, queue: CompletionQueue, token: int) -> None:
        self._operation._disarm(queue, token)

    def __repr__(self) -> str:
        return repr(self._operation)
