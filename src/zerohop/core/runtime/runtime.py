"""Declares Runtime, the parts of a Context that every room of the core uses: the engine, its threads and its state.

A Context has one core object. Each room sees it as a class that declares the parts which the room may use, no more:
Runtime here, MemoryCore in memory, LaneCore in lanes, PeerCore in peers, and Core in lifecycle.py, which opens them.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError
from zerohop.core.base.deadlines import deadline_after
from zerohop.core.base.sandbox import random_bytes
from zerohop.errors import Closed

if TYPE_CHECKING:
    from zerohop._native import Engine, Op, Reason, Status
    from zerohop.config.settings import Settings
    from zerohop.core.runtime.control_thread import ControlThread
    from zerohop.core.runtime.devices import Devices
    from zerohop.core.runtime.event_loops import Loops
    from zerohop.core.runtime.gate import Gate
    from zerohop.errors import ZerohopError

_NS: Final = 1_000_000_000


class Runtime:
    """Holds the engine of a Context, its control thread, its event loops and its devices.

    Attributes:
        id: the random id of the Context, 32 hexadecimal digits.
        name: the name that peers and logs use for the Context.
        settings: the resolved settings.
        timeout_ns: default time limit of an operation, in nanoseconds; 0: none.
        spin_ns: nanoseconds of polling before a wait sleeps.
        closed: whether the Context is closed, or not open yet.
        gone: whether the Context has ended, so that nothing is left to close.
        dropped: whether the Context was dropped while it was open, and its finalizer closes it.
        forked: whether this is the copy of a parent's Context in a forked child.
        turn_ends_ns: time until which a task may await operations that have ended without a turn for other tasks.
        deferred: operations that the control thread has still to post, each with the id of its peer.
        beside_lanes: whether there ever was work beside the lanes, as transfers of files are, for which a flush waits.
        preparing: first uses that ``_nowait`` calls have begun, by handle or URL: None while the preparation runs,
            else its failure.
        gates: where first uses of a peer's memory wait for their turn, by the URL that a handle names.
    """

    engine: Engine
    control: ControlThread
    loops: Loops
    devices: Devices

    def __init__(self, settings: Settings) -> None:
        self.id: Final = random_bytes(16).hex()
        self.name: Final = settings.name
        self.settings: Final = settings
        self.timeout_ns: Final = int(settings.timeout * _NS)
        self.spin_ns: Final = int(settings.spin_us * 1000)
        self.closed = self.gone = True
        self.dropped = self.forked = False
        self.turn_ends_ns = 0
        # The keys are Deferred operations, whose class is declared above this one.
        self.deferred: dict[Any, str] = {}
        self.beside_lanes = False
        self.preparing: dict[object, Exception | None] = {}
        # Operations that wait at a gate, or are inside, hold it.
        self.gates: weakref.WeakValueDictionary[str, Gate] = weakref.WeakValueDictionary()

    def check_open(self) -> None:
        """Raise Closed if the Context is closed."""
        if self.closed or self.forked:
            raise self.closed_error()

    def check_process(self) -> None:
        """Raise Closed in a forked child, before something there waits for threads that it does not have."""
        if self.forked:
            raise self.closed_error()

    def closed_error(self) -> ZerohopError:
        """Return the error of a call to a closed Context."""
        if self.forked:
            return Closed("this Context was created before fork()", fix="create a new Context in the child")
        if self.dropped:
            fix = "keep the Context for as long as you use anything of it, and close it"
            return Closed("this Context was dropped and not closed, so its finalizer has closed it", fix=fix)
        return Closed("this Context is closed")

    def deadline(self, timeout: float | None) -> int:
        """Return a deadline, in nanoseconds of the monotonic clock; 0: none. ``timeout`` None: the Context's."""
        if timeout is None:
            return time.monotonic_ns() + self.timeout_ns if self.timeout_ns else 0
        return deadline_after(timeout)

    def complete(self, native: Op, status: Status, reason: Reason, nbytes: int) -> None:
        """End a native operation of this library; one that its deadline or a cancellation has ended stays as it is."""
        try:
            native.complete(status, reason, 0, nbytes)
        except NativeError:  # the engine is closed, and has ended the operation
            pass
