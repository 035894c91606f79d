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
        """Look for what kernels write, until ``stop_looking`` was called as often."""

    def stop_looking(self) -> None:
        """Take what kernels have written by now, and look no more."""

    def settle(self, deadline_ns: int) -> bool:
        """Wait for the end of what was taken, but not for long; return whether all has ended."""


@contextmanager
def kernels_running(device: str) -> Iterator[None]:
    """Let no call to a GPU's driver begin that waits for running kernels, until the end of the ``with`` block.

    Freeing memory and loading kernels are such calls. While one waits, the driver lets no other call of the process in,
    and so no copy that the kernels wait for. ``device``: where the kernels run; on the host there is nothing to do.
    """
    if device == HOST:
        yield
        return
    hold = IdleCallsHold()
    try:
        yield
    finally:
        hold.end()


@contextmanager
def carry_out(work: KernelWork, device: str, timeout_ns: int, late: Callable[[], ZerohopError]) -> Iterator[None]:
    """Carry out what kernels write, until the end of the ``with`` block, which waits for the end of all of it.

    Args:
        work: the native part of the queue that they write to.
        device: where the kernels run.
        timeout_ns: of the wait at the end.
        late: returns the error to raise if that is not enough; it may raise a better one.
    """
    with kernels_running(device):
        work.look()
        try:
            yield
        finally:
            work.stop_looking()
        deadline_ns = time.monotonic_ns() + timeout_ns
        while not work.settle(deadline_ns):
            if time.monotonic_ns() >= deadline_ns:
                raise late()
