"""Has this process carry out what kernels ask for, while they run."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from zerohop._native import IdleCallsHold
from zerohop.core.runtime.devices import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
def kernels_running(device: str, timeout_ns: int, begun: Callable[[], object] = int) -> Iterator[None]:
    """Postpone zerohop's calls to a GPU's driver that wait for running kernels to the end of the ``with`` block.

    Freeing memory and loading kernels are such calls. While one waits, the driver lets no other call of the process in,
    and so no copy that the kernels wait for. Calls of other libraries are not postponed.

    Args:
        device: where the kernels run; on the host there is nothing to postpone.
        timeout_ns: how long the beginning of the block waits for such a call that is under way.
        begun: called before that wait. A kernel that runs already, and that the call waits for, may need it to end.
    """
    if device == HOST:
        begun()
        yield
        return
    hold = IdleCallsHold()
    try:
        begun()
        deadline_ns = time.monotonic_ns() + timeout_ns
        while not hold.settled(deadline_ns) and time.monotonic_ns() < deadline_ns:
            pass
        yield
    finally:
        hold.end()


@contextmanager
def carry_out(work: KernelWork, device: str, timeout_ns: int, late: Callable[[], ZerohopError]) -> Iterator[None]:
    """Carry out the requests of kernels until the end of the ``with`` block, which waits until all have ended.

    Args:
        work: the native part of the queue that they write to.
        device: where the kernels run.
        timeout_ns: how long the end of the block waits, in nanoseconds.
        late: called when that time is up; it returns the error to raise, or raises another one itself.

    Raises:
        ZerohopError: the error of ``late``.
    """
    looking = False

    def look() -> None:
        nonlocal looking
        work.look()
        looking = True

    try:
        with kernels_running(device, timeout_ns, look):
            yield
    finally:
        if looking:
            work.stop_looking()
    deadline_ns = time.monotonic_ns() + timeout_ns
    while not work.settle(deadline_ns):
        if time.monotonic_ns() >= deadline_ns:
            raise late()
