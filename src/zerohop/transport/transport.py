"""Declares Transport, one end of a pair whose ends write into each other's memory and get notifications of it.

The idea is torchcomms' RdmaTransport: both sides `bind`, each is told the other's URL, then one-sided writes and reads
are futures, and the target calls `wait_for_write`. A Transport adds to a Context one peer, notifications of its own,
and operations that end together with it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zerohop._native import Reason, Status
from zerohop.core.face import (
    Face,
    NotificationWait,
    OperationGroup,
    PairTransfers,
    check_device,
    seconds_of,
    transfer,
    transfer_many,
)
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ZerohopError, copy_of
from zerohop.transport import pairing, setup
from zerohop.transport.setup import device_name, settings_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.face import Context, Link, Local, Memory, Notification, Operation, RemoteBuffer, Rights, Stream


class Transport(Face, PairTransfers):
    """Represents one end of a pair. Thread-safe; usable with and without asyncio; a context manager.

    Both sides `bind`, tell each other the URL, and `connect`; one side's `connect` is enough. Memory is registered with
    `register`, and a handle of it, ``memory.share("rw")``, goes to the peer in any way. Any provider and any memory of
    the Context may be used, whatever ``device`` is.

    ``write(view, remote, *, notify, timeout, stream)``, ``write_many(pairs, ...)`` and ``read(view, remote, ...)`` are
    native. When they are done, their arguments and their errors are as in ``Context``, except that ``read`` names the
    memory here first, ``remote`` may be longer than ``view``, and ``notify`` goes to the peer's `wait_for_write`. A
    shorter ``remote``, or one that is not the peer's, is a ValueError, with nothing posted.

    A Transport is broken when the peer is gone or has closed its end, and after `abort` or `close`. Then all pending
    operations have ended, and every call raises the reason at once.

    Attributes:
        context: the Context that it uses.
        device: the device that it was made for: ``"host"``, ``"cuda:0"``, ``"sim:0"``, ...
    """

    _copy_refusal = "a Transport stays in its process, and is not copied; make one there, and send bind()'s URL"

    def __init__(
        self, device: object = "host", *, ctx: Context | None = None, timeout: float | None = None, **settings: Any
    ) -> None:
        """Use a Context, which several Transports may share, or open one.

        Args:
            device: a device's name, the number of a CUDA device, or a ``torch.device``.
            ctx: the Context, which stays open. None: a new one, which is closed with the Transport.
            timeout: seconds for each operation unless the call says otherwise, ``math.inf`` for none; None: the
                Context's.
            settings: arguments of Context, for a new one, such as ``providers`` or ``secret``.

        Raises:
            ValueError: no such device; `why_unsupported` says why. Settings beside a Context.
            TypeError: not a device, or not a Context.
            Closed: the Context is closed.
            Unsupported, RegistrationFailed: the errors of Context.
        """
        self.device = device_name(device)
        super().__init__(ctx, settings_for(self.device, settings) if ctx is None else settings, timeout)
        try:
            check_device(self.context, self.device)
            self._group = OperationGroup(self._core)
        except BaseException:
            self._close_context()
            raise
        self._post_natively((_write, _write_many, _read), self._group)
        self._pairing = pairing.Pairing(self)
        self._join_context()

    @staticmethod
    def supported(device: object = "host", **settings: Any) -> bool:
        """Tell whether a Transport can be made on a device of this machine, with these settings of a Context."""
        return not Transport.why_unsupported(device, **settings)

    @staticmethod
    def why_unsupported(device: object = "host", **settings: Any) -> str:
        """Return why no Transport can be made, and the fix; empty if one can. Opens a Context to find out.

        Raises:
            TypeError: not a device, or no setting of a Context.
        """
        return setup.why_unsupported(device, settings)

    def bind(self) -> str:
        """Return the URL for the peer's `connect`. From now on a peer may join; the first that does is the only one.

        Raises:
            Closed, PeerLost: the Transport is broken.
        """
        self._break_if_lost()
        self._check()
        directory = self._service(pairing.SERVICE, pairing.Directory)
        directory.bound[self._pairing.id] = self._pairing
        return self._pairing.url(self.context.url)

    def connect(self, url: str, *, timeout: float | None = None) -> Operation[Transport]:
        """Join the Transport whose `bind` gave the URL; value: this one. Ends at once if both are a pair already.

        Args:
            url: the URL that the peer's `bind` gave.
            timeout: seconds; None: the Transport's.

        Raises:
            ValueError: not such a URL, or this Transport is connected to another peer, or is connecting to one.
            Closed, PeerLost: the Transport is broken. From the Operation: PeerLost (the other Transport is gone, or
                nobody answers), AccessDenied (it is connected to another, or wants a secret), DeadlineExceeded (no
                answer); other errors are those of ``Context.connect``.
        """
        attempt = pairing.Attempt(url)
        deadline_ns = self._deadline(timeout)
        self.bind()
        with self._pairing.lock:
            if not self._pairing.free_for(attempt.peer):
                raise ValueError(
                    "this Transport is connected to another peer, or is about to be. Fix: make a second Transport"
                )
            if self._pairing.peer:
                return self._finished("connect", self)

            async def work() -> Transport:
                await self._pairing.join(attempt, self._connect)
                return self

            attempt.operation = operation = self._defer("connect", deadline_ns, work)
            self._pairing.begin(attempt)
        self._group.note(operation)
        return operation

    def connected(self) -> bool:
        """Tell whether both sides know of each other, and neither is known to be gone."""
        self._break_if_lost()
        return (
            bool(self._pairing.peer) and self._group.ended is None and not self._core.forked and not self._core.closed
        )

    @property
    def peer(self) -> str:
        """Return the id of the peer's Context; empty before there is a peer."""
        link = self._group.link
        return "" if link is None else link.peer

    def register(self, x: Any, rights: Rights | None = None, *, as_bytes: bool = False) -> Memory:
        """Register a tensor, an array or a raw ``(pointer, nbytes, device)``, as ``Context.register`` does."""
        self._break_if_lost()
        self._check()
        memory: Memory = self.context.register(x, rights, as_bytes=as_bytes)
        return memory

    def wait_for_write(self, timeout: float | None = None) -> Operation[Notification]:
        """Wait for the peer's next write with ``notify``, or take one that has come; value: its Notification.

        The bytes of the write are visible by then. Each such write ends one wait, in the order of arrival.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            Closed, PeerLost: the Transport is broken, and everything that had arrived before was taken. The Operation
                raises them, too, if the Transport breaks meanwhile; and DeadlineExceeded.
        """
        self._core.check_open()
        self._break_if_lost()
        deadline = 0 if timeout is None else self._core.deadline(timeout)
        wait = NotificationWait(self._core, deadline, self._group)
        if self._group.ended is not None and wait.done():
            error = wait.exception()
            if isinstance(error, DeadlineExceeded):  # no notification is left, and the queue is about to end
                raise copy_of(self._group.ended)
            if error is not None:
                raise error
        return wait

    def flush(self, *, timeout: float | None = None) -> Operation[int]:
        """Flush: done when all that was posted before is visible at the peer; value: 0."""
        self._break_if_lost()
        operation = self._flush(self._check_joined(), self._timeout_of(timeout))
        self._group.note(operation)
        return operation

    def abort(self) -> None:
        """End all pending operations with Closed, at once; every later call raises Closed. Idempotent.

        Buffers of operations in flight stay pinned until nothing can touch them. The peer's end breaks, too.
        """
        self._end(Closed("this Transport was aborted"), 0)

    def close(self, timeout: float = 5.0) -> None:
        """End like `abort`, but in good order: ended writes are visible and announced before the peer is told.

        Closes the Context if this Transport has opened it. Idempotent.

        Args:
            timeout: seconds to wait at most.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number; the Transport stays open.
        """
        deadline = time.monotonic() + seconds_of(timeout)
        self._end(Closed("this Transport is closed"), timeout)
        self._close_context(max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        # If __init__ failed, there is nothing to end.
        if not hasattr(self, "_pairing") or self._core.forked:
            return
        self._end(Closed("this Transport was dropped"), 0)
        self._drop_context()

    def __repr__(self) -> str:
        ended = self._group.ended
        state = str(ended) if ended is not None else "connected" if self._pairing.peer else "not connected"
        return f"<Transport on {self.device}, {state}>"

    def _break_if_lost(self) -> None:
        """Break at once if the data plane knows that the peer is gone, before the control thread does.

        Transfers do not call this, because posting to a dead peer fails by itself.
        """
        link = self._group.link
        if link is None or self._group.ended is not None or self._core.forked or self._core.closed:
            return
        try:
            link.check_alive()
        except ZerohopError as error:
            self._catch_up(link)
            self._break_because(error)

    def _check(self) -> None:
        self._core.check_process()
        self._group.check()
        self._core.check_open()

    def _check_joined(self) -> Link:
        """Return the link to the peer; raise why nothing can be posted."""
        self._check()
        link = self._group.link
        if link is None:
            raise PeerLost("this Transport has no peer yet", fix="connect() first, or wait until the peer has")
        return link

    # pairing.py uses the next three members, by its Protocol `End`.

    def _meet(self, link: Link, queue: int) -> bool:
        """Take the peer, on the control thread; return False if this end has ended meanwhile."""
        self._group.meet(self._usable_link(link), queue)
        self._post_natively((_write, _write_many, _read), self._group, queue)
        if self._group.ended is None:
            return True
        self._stop_posting()
        return False

    def _left(self) -> None:
        """Break, on the control thread, because the peer has closed its end."""
        link = self._group.link
        if link is not None:
            self._catch_up(link)
            error = PeerLost("the peer closed its Transport", peer=self.peer)
            self._break(error, Status.PEER_LOST, Reason.PEER_CLOSED)

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        self._pairing.lost(link)
        known = self._group.link
        if known is not None and known.peer == link.peer:
            self._break_because(error)

    def _break_because(self, error: ZerohopError) -> None:
        """Break because the link is lost, after everything that came over it was received."""
        closed = isinstance(error, Closed)
        status = Status.CLOSED if closed else Status.PEER_LOST
        self._break(copy_of(error), status, Reason.OWNER_CLOSED if closed else Reason.PEER_CLOSED)

    def _break(self, error: ZerohopError, status: Status, reason: Reason) -> None:
        self._group.end(error, status, reason)
        # The group ends first: `_meet` begins to post and then checks that, so that one of both stops posting.
        self._stop_posting()

    def _end(self, error: Closed, flush_s: float) -> None:
        """End from this side; wait ``flush_s`` seconds at most until ended operations are visible at the peer."""
        if self._core.forked:
            self._stop_posting()
            self._group.abandon(error)
            return
        if self._group.ended is None:
            self._break(error, Status.CLOSED, Reason.OWNER_CLOSED)
            # Read after the end: if `_meet` runs at this moment, either it sees the end or this sees the link.
            link = self._group.link
            if link is not None and not self._core.closed:
                if flush_s:
                    try:
                        self._flush(link, flush_s).result()
                    except ZerohopError:  # the peer may be gone, or be stopped
                        pass
                self._on_control_thread(pairing.leave, link, self._pairing.peer, self._pairing.id)
        self._group.close()
        self._pairing.forget_attempts()
        self._leave_context()


# The native methods call these functions if they posted nothing themselves.
def _write(
    self: Transport,
    view: Local,
    remote: RemoteBuffer,
    *,
    notify: int | None = None,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    self._check_joined()
    limit = self._timeout_of(timeout)
    return transfer(self._core, "write", view, remote, notify, limit, stream=stream, group=self._group)


def _read(
    self: Transport, view: Local, remote: RemoteBuffer, *, timeout: float | None = None, stream: Stream | None = None
) -> Operation[int]:
    self._check_joined()
    limit = self._timeout_of(timeout)
    return transfer(self._core, "read", view, remote, None, limit, stream=stream, group=self._group)


def _write_many(
    self: Transport,
    pairs: Sequence[tuple[Local, RemoteBuffer]],
    *,
    notify: int | None = None,
    timeout: float | None = None,
) -> Operation[int]:
    self._check_joined()
    return transfer_many(self._core, "write_many", pairs, notify, self._timeout_of(timeout), self._group)


# Errors of wrong arguments name the methods by which users know these.
for _function, _name in ((_write, "write"), (_read, "read"), (_write_many, "write_many")):
    _function.__qualname__ = f"Transport.{_name}"
