"""Groups the operations of one owner, such as a Transport, on a Context that it shares with others."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import Group, NativeError, Reason, Status
from zerohop.core.runtime.deferred_operation import Deferred
from zerohop.errors import RegistrationFailed, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.operation import Operation

QUEUE_SHIFT: Final = 32


class OperationGroup:
    """Holds operations with one peer that end together, and a queue of notifications of its own.

    Attributes:
        group: the engine's object for the operations.
        number: number of this Context's queue that the peer notifies.
        closed: whether the queue is closed, so that another one may get its number.
    """

    def __init__(self, core: Core) -> None:
        """Open a queue; raise RegistrationFailed if too many are open, Closed if the Context is closed."""
        self._core = core
        try:
            self.group = Group()
            self.number: int = core.engine.open_queue()
            self.closed = False
        except NativeError as error:
            core.check_open()
            if error.args[1] == Reason.WINDOW_FULL.value:
                raise RegistrationFailed(error.args[2], fix="close some Transports, or use another Context") from None
            raise from_native(*error.args) from None
        self._ended: ZerohopError | None = None
        # The link to the peer, once there is one, and the number of the peer's queue that writes notify.
        self._link: PeerLink | None = None
        self._peer_queue = 0
        # Operations that the control thread has still to post, in their order. Changed under the lock.
        self._deferred: weakref.WeakKeyDictionary[Deferred[Any], None] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()

    @property
    def link(self) -> PeerLink | None:
        """Return the link to the peer; None while there is none."""
        return self._link

    @property
    def ended(self) -> ZerohopError | None:
        """Return why nothing can be posted any more; None if it can."""
        return self._ended

    def meet(self, link: PeerLink, queue: int) -> None:
        """Set the peer, and the queue of the peer that writes notify."""
        self._link, self._peer_queue = link, queue
        self.expect(link)

    def expect(self, link: PeerLink) -> None:
        """Take notifications of this peer only from now on, because a queue's number is easy to guess."""
        # A Context that talks to itself sends notifications at one end and gets them at the other.
        end = link.partner or link
        self._of_queue("take_from", end.native_id)

    def check(self) -> None:
        """Raise why nothing can be posted any more."""
        if self._ended is not None:
            raise copy_of(self._ended)

    def check_owner(self, remote: RemoteBuffer) -> None:
        """Raise ValueError unless the handle belongs to the peer."""
        link = self._link
        if link is not None and remote.owner != link.peer:
            raise ValueError(f"the handle is of Context {remote.owner[:12]}, not of the peer {link.peer[:12]}")

    def announce(self, value: int) -> int:
        """Return a notification's number together with the peer's queue, as the engine takes it."""
        return value | self._peer_queue << QUEUE_SHIFT

    def note(self, operation: Operation[Any]) -> None:
        """Add an operation that has just begun, and ends with the others."""
        if isinstance(operation, Deferred):
            with self._lock:
                self._deferred[operation] = None
            if self._ended is not None:
                operation.fail(copy_of(self._ended))

    def end(self, error: ZerohopError, status: Status, reason: Reason) -> None:
        """End all operations, and all that begin from now on. Any thread may call it; the first call counts.

        Notifications that have come can still be taken, until `close`.
        """
        if self._ended is None:
            self._ended = error
            try:
                self._core.engine.end_group(self.group, status, reason)
            except NativeError:  # the Context is closed, and its engine has ended everything
                pass
            self._of_queue("end_queue")
            with self._lock:
                deferred = list(self._deferred)
            for operation in deferred:
                operation.fail(copy_of(error))

    def abandon(self, error: ZerohopError) -> None:
        """Mark the group as ended in a forked child, without native calls: a thread of the parent may hold a lock."""
        self._ended = self._ended or error

    def close(self) -> None:
        """Close the queue after the end: no notification can be taken any more."""
        self.closed = True
        self._of_queue("close_queue")

    def _of_queue(self, what: str, *more: int) -> None:
        try:
            getattr(self._core.engine, what)(self.number, *more)
        except NativeError:  # the Context is closed, and its engine with all queues
            pass
