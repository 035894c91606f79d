"""Has this process carry out what kernels ask for, while they run."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from zerohop._native import IdleCallsHold
from zerohop.core.runtime.devices import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zerohop.errors import ZerohopError


class KernelWork(Protocol):
    """Declares the native part of a queue that kernels write to."""

    def look(self) -> None:
        """Begin to look for requests; looking ends when ``stop_looking`` was called as many times as this."""

    def stop_looking(self) -> None:
        """Take the requests that kernels have written by now, and look for no more."""

    def settle(self, deadline_ns: int) -> bool:
        """Wait until all requests that were taken have ended, 200 ms at most a call; return whether all have."""


@contextmanager
def carry_out(
    works: Sequence[KernelWork], device: str, timeout_ns: int, late: Callable[[], ZerohopError]
) -> Iterator[None]:
    """Carry out the requests of kernels until the end of the ``with`` block, which waits until all have ended.

    zerohop's calls to a GPU's driver that wait for running kernels are postponed to the end of the block, such as those
    that free memory or load kernels. While one waits, the driver lets no other call of the process in, and so no copy
    that the kernels wait for. Calls of other libraries are not postponed.

    Args:
        works: the native parts of the queues that kernels write to, as far as this process carries them out.
        device: where the kernels run; on the host there is nothing to postpone.
        timeout_ns: how many nanoseconds the end of the block waits, for all queues together. The beginning of the block
            waits as long for a call to the driver that is under way.
        late: called when the end of the block has waited that long; it returns the error to raise, or raises another.

    Raises:
        ZerohopError: the error of ``late``.
    """
    with ExitStack() as looking:
        hold = None
        if device != HOST:
            hold = IdleCallsHold()
            looking.callback(hold.end)
        for work in works:
            work.look()
            looking.callback(work.stop_looking)
        # A kernel that runs already, and that the call to the driver waits for, may need this process to end.
        deadline_ns = time.monotonic_ns() + timeout_ns
        while hold is not None and not hold.settled(deadline_ns) and time.monotonic_ns() < deadline_ns:
            pass
        yield
    deadline_ns = time.monotonic_ns() + timeout_ns
    for work in works:
        while not work.settle(deadline_ns):
            if time.monotonic_ns() >= deadline_ns:
                raise late()
