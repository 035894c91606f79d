"""Takes an operation through the commonest first use: the peer is known, and only its memory has to be asked for.

Thousands of handles may be used for the first time at once. A task for each costs more than all that it does, so that
this has none: the end of the import posts the operation. All else is left to the task of the operation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError
from zerohop.core.memory.access import registration_of
from zerohop.core.memory.remote_buffer import share_of
from zerohop.core.runtime.deferred import attach
from zerohop.core.runtime.deferred_post import value_of
from zerohop.core.runtime.limited_wait import call_at_limit
from zerohop.errors import ZerohopError, silent_error

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from zerohop._native import Op
    from zerohop.core.lanes.link import Route
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.deferred import Work

_NS: Final = 1e9


class QuickUse:
    """Follows one operation on the control thread, or hands it to its task, which meets and reports every failure."""

    __slots__ = (
        "_core",
        "_find",
        "_forget",
        "_imported",
        "_nbytes",
        "_post",
        "_posted",
        "_remote",
        "_value_from",
        "_view",
        "_work",
    )

    def __init__(
        self,
        core: Core,
        view: Memory | View,
        remote: RemoteBuffer,
        nbytes: int,
        value_from: int,
        deadline_ns: int,
        post: Callable[[int, bool], int | tuple[int, int] | Op],
        find: Callable[[Core, Memory | View, RemoteBuffer], Route | None],
        work: Work,
    ) -> None:
        """Begin.

        Args:
            core: the core of the Context.
            view: the memory here.
            remote: the handle of the memory there.
            nbytes: bytes that the operation moves.
            value_from: NBYTES, NATIVE_VALUE or BYTES_DONE.
            deadline_ns: on the monotonic clock; 0: none.
            post: posts natively, given route id and ``nowait``.
            find: finds the route once the memory is here; None if more is missing.
            work: the work of the operation, as ``defer`` hands it to a shortcut.
        """
        self._core, self._view, self._remote = core, view, remote
        self._nbytes, self._value_from = nbytes, value_from
        self._post, self._find = post, find
        self._work = work
        self._posted: Op | None = None
        self._forget: Callable[[], object] | None = None
        self._imported: asyncio.Future[None] | None = None
        link = core.connected.get(remote.owner)
        session = link.session if link is not None and link.alive else None
        if session is None:
            work.begin()
            return
        try:
            imported = session.begin_import(share_of(remote), registration_of(view))
        except ZerohopError:
            work.begin()
            return
        if imported is None:
            self._try()
            return
        self._imported = imported
        imported.add_done_callback(self._use)
        work.operation.wait_for(self)
        work.operation.say_when_late(self._silent)
        if deadline_ns:
            left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / _NS)
            self._forget = call_at_limit(imported.get_loop(), left_s, self._too_late)

    def cancel(self) -> None:
        """End the wait, or the transfer, because the operation was cancelled."""
        if self._posted is not None:
            self._posted.cancel()
        else:
            self._stop_waiting()
            self._work.end()

    def _stop_waiting(self) -> None:
        forget, self._forget = self._forget, None  # which knows this object, and would keep it and the engine
        if forget is not None:
            forget()
        imported, self._imported = self._imported, None
        if imported is not None:
            imported.remove_done_callback(self._use)

    def _silent(self) -> ZerohopError:
        return silent_error(self._remote.owner, "the peer does not answer")

    def _too_late(self) -> None:
        self._stop_waiting()
        self._work.conclude(None, self._silent())
        self._work.end()

    def _use(self, imported: asyncio.Future[None]) -> None:
        self._stop_waiting()
        work = self._work
        try:
            if work.native.done():
                work.end()
            elif imported.cancelled() or imported.exception() is not None:
                work.begin()
            else:
                self._try()
        except BaseException as error:
            if self._posted is None:  # nobody else knows of the operation any more
                work.give_up(error)
            raise

    def _try(self) -> None:
        """Post, if the route is found and the lane has room."""
        work = self._work
        work.operation.say_when_late(None)
        posted: int | tuple[int, int] | Op | None = None
        try:
            route = self._find(self._core, self._view, self._remote)
            if route is not None:
                attach(work.operation, route)
                posted = self._post(route.id, True)
        except (NativeError, ZerohopError):  # nothing was posted, and the task meets the same; not so after others
            posted = None
        if posted is None:
            work.begin()
        elif isinstance(posted, (int, tuple)):
            self._end(posted)
        else:
            work.operation.prepared()
            work.operation.wait_for(self)
            work.operation.carried_by(posted)
            self._posted = posted
            self._follow(posted)

    def _follow(self, posted: Op) -> None:
        try:
            queue = self._core.loops.running()
        except (NativeError, ZerohopError):  # the Context is being closed, which ends the operation
            self._work.end()
            return

        def ended() -> None:
            queue.disarm(posted.disarm, token)
            self._end(posted)

        token = queue.arm(posted.arm, ended)
        if not token:
            self._end(posted)

    def _end(self, posted: int | tuple[int, int] | Op) -> None:
        try:
            value = value_of(posted, self._nbytes, self._value_from)
        except ZerohopError as error:
            self._work.conclude(None, error)
        else:
            self._work.conclude(value)
        self._work.end()
