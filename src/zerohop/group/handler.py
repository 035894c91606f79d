"""Declares Handler, which calls a function for each operation that has ended."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

from zerohop.errors import Closed, DeadlineExceeded
from zerohop.group.completion import SLICE_S, Ended
from zerohop.group.completions import CompletionList

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    from zerohop.group.messaging import Messaging


class Handler(CompletionList):
    """Calls a function for each operation that has ended, where the user chose."""

    def __init__(
        self,
        group: Messaging,
        function: Callable[[Ended], object],
        *,
        executor: Executor | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Call ``function`` in an executor, or on an event loop; without either, in the thread that calls ``run``.

        An exception of the function goes to the executor's future, to the loop's exception handler, or to the caller of
        ``run``.

        Raises:
            ValueError: both an executor and a loop.
        """
        if executor is not None and loop is not None:
            raise ValueError("a Handler runs in an executor or on a loop; pass one of them")
        super().__init__(group)
        self._function = function
        self._thread: threading.Thread | None = None
        call: Callable[..., object] | None = None
        if executor is not None:
            call = executor.submit
        elif loop is not None:
            call = loop.call_soon_threadsafe
        if call is not None:
            # The thread does not keep this object alive.
            arguments = weakref.ref(self), functools.partial(call, function)
            self._thread = threading.Thread(target=_forward, args=arguments, name="zerohop handler", daemon=True)
            self._thread.start()

    def run(self, timeout: float | None = 0) -> int:
        """Call the function for all that have ended by now; return for how many.

        Args:
            timeout: seconds to wait for the first; None: until there is one.
        """
        calls = 0
        ended = self.poll()
        if ended is None and timeout != 0:
            try:
                ended = self.pop(timeout)
            except DeadlineExceeded:
                return 0
        while ended is not None:
            self._function(ended)
            calls += 1
            ended = self.poll()
        return calls

    def close(self) -> None:
        """Call the function no more. Operations go on, but nobody can send to this object any more."""
        super().close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def take_back(self, ended: Ended) -> None:
        """Put an end back for the next ``run``."""
        with self._changed:
            self._ended.appendleft(ended)


def _forward(handler: weakref.ref[Handler], call: Callable[[Ended], object]) -> None:
    """Pass ends on, until the Handler is closed or gone, its Context is closed, or nobody takes them any more."""
    while True:
        itself = handler()
        if itself is None:
            return
        try:
            ended = itself.pop(SLICE_S)
        except DeadlineExceeded:
            del itself
            continue
        except Closed:
            return
        try:
            call(ended)
        except RuntimeError as error:  # of an executor or a loop that has ended
            itself.take_back(ended)
            warnings.warn(f"a Handler calls its function no more: {error}. Fix: call run(), or close it", stacklevel=1)
            return
        del itself, ended
