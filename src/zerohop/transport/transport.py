"""The face of point-to-point futures: two Transports, joined, write into each other's memory and hear of it.

The idea is torchcomms' RdmaTransport: `bind` on both sides, each told the other's URL, then one-sided writes and reads
that are futures, and `wait_for_write` at the target. What is added to a Context: a peer of its own, its own
notifications, and an end of its own, which takes all that is pending with it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base.deadlines import nanoseconds_of, seconds_of
from zerohop.core.lifecycle import Owner, Poster
from zerohop.core.runtime.deferred import defer
from zerohop.core.runtime.native_operation import InFlight
from zerohop.core.runtime.operation import Finished, Operation
from zerohop.core.transfers import transfer, write_many
from zerohop.core.transfers.notification import NotificationWait
from zerohop.core.transfers.op_group import Scope
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ZerohopError, copy_of
from zerohop.transport import pairing
from zerohop.transport.setup import device_name, open_context, why_unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerohop.core.context import Context
    from zerohop.core.memory.memory import Memory, Rights
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.connection import Connection
    from zerohop.core.transfers.notification import Notification
    from zerohop.core.transfers.transfer import Local


class Transport(Owner):
    """One end of a pair. Thread-safe; usable with and without asyncio; a context manager that closes itself.

    Both sides `bind`, tell each other the URL, and `connect`; one side's `connect` is enough. Memory is registered with
    `register`, and a handle of it, ``memory.share("rw")``, goes to the peer in any way. Any provider and any memory of
    the Context may be used, whatever ``device`` says.

    Once it is broken, because the peer is gone or closed its end, or because of `abort` or `close`, all that was
    pending has ended, and every call raises why, at once.

    Attributes:
        context: the Context that it uses.
        device: where its memory mostly is: ``"host"``, ``"cuda:0"``, ``"sim:0"``, ...
    """

    def __init__(
        self, device: object = "host", *, context: Context | None = None, timeout: float | None = None, **settings: Any
    ) -> None:
        """Opens a Context of its own unless one is given, which several Transports may share.

        Args:
            device: a device's name, the number of a CUDA device, or a ``torch.device``.
            context: what to use; it is not closed with the Transport.
            timeout: seconds for each operation unless it says otherwise, ``math.inf`` for none; None: the Context's.
            settings: of the Context that is opened, such as ``providers`` or ``secret``.

        Raises:
            ValueError: no such device; `why_unsupported` says why. Settings beside a Context.
            TypeError: not a device.
            Closed: the Context is closed.
            Unsupported, RegistrationFailed: as Context has them.
        """
        self.device = device_name(device)
        if context is not None and settings:
            raise ValueError(f"{', '.join(settings)}: settings of a Context, beside one that is open already")
        self._owned = context is None
        self.context = context if context is not None else open_context(self.device, settings)
        try:
            self.context._check_open()
            self.context._devices.index_of(self.device)
            self._timeout_s = timeout if timeout is None else seconds_of(timeout)
            self._timeout_ns = self.context._timeout_ns if timeout is None else nanoseconds_of(timeout)
            self._scope = Scope(self.context)
        except BaseException:
            if self._owned:
                self.context.close()
            raise
        # Which say that there is no peer yet, until there is.
        self._begin_posting(None, InFlight, Finished, _write, _write_many, _read, self._timeout_ns)
        self._joining = pairing.Joining(self)
        self.context._owners[self._joining.id] = self

    # Setting up

    @staticmethod
    def supported(device: object = "host", **settings: Any) -> bool:
        """Whether a Transport on that device can be made on this machine, with those settings of a Context."""
        return not why_unsupported(device, settings)

    @staticmethod
    def why_unsupported(device: object = "host", **settings: Any) -> str:
        """Why not, and what to do about it; empty where it is. Finds out by opening a Context.

        Raises:
            TypeError: not a device.
        """
        return why_unsupported(device, settings)

    def bind(self) -> str:
        """The URL for the peer's `connect`. From now on a peer may join; the first one that does is the only one.

        Raises:
            Closed, PeerLost: the Transport is broken.
        """
        self._notice()
        self._check()
        return self._joining.bind()

    def connect(self, url: str, *, timeout: float | None = None) -> Operation[Transport]:
        """Join the Transport whose `bind` gave the URL; value: this one. Where it has joined this one, at once.

        Args:
            url: of the peer's `bind`.
            timeout: seconds; None: the Transport's.

        Raises:
            ValueError: not such a URL, or this Transport is connected to another peer, or is connecting to one.
            Closed, PeerLost: the Transport is broken. From the Operation: PeerLost (no such Transport any more, or
                nobody is there), AccessDenied (it is connected to another, or wants a secret), DeadlineExceeded (no
                answer); others as for ``Context.connect``.
        """
        attempt = pairing.Attempt(url)
        deadline_ns = self._deadline(timeout)
        self.bind()
        with self._joining.lock:
            if not self._joining.free_for(attempt.peer):
                raise ValueError(
                    "this Transport is connected to another peer, or is about to be. Fix: make a second Transport"
                )
            if self._joining.peer:
                return Finished(self.context, "connect", None, 0, self, 0)

            async def work() -> Transport:
                await self._joining.join(attempt)
                return self

            attempt.operation = defer(self.context, "connect", 0, deadline_ns, work, None)
            self._joining.begin(attempt)
        self._scope.note(attempt.operation)
        return attempt.operation

    def connected(self) -> bool:
        """Whether both sides know of each other, and neither is known to be gone."""
        self._notice()
        context = self.context
        return bool(self._joining.peer) and self._scope.ended is None and not context._forked and not context._closed

    @property
    def peer(self) -> str:
        """Id of the peer's Context; empty before there is one."""
        connection = self._scope.connection
        return "" if connection is None else connection.peer

    def register(self, x: Any, rights: Rights | None = None) -> Memory:
        """``Context.register``: the Memory of a tensor, an array or a raw ``(pointer, nbytes, device)``."""
        self._notice()
        self._check()
        memory: Memory = self.context.register(x, rights)
        return memory

    # Transfers

    if TYPE_CHECKING:

        def write(
            self,
            view: Local,
            remote: RemoteBuffer,
            *,
            notify: int | None = None,
            timeout: float | None = None,
            stream: Stream | None = None,
        ) -> Operation[int]:
            """Write all of ``view`` into the begin of ``remote``; value: bytes moved. Native (native/bind/).

            Done, arguments and errors as for ``Context.write``, but that ``remote`` may be longer, and ``notify`` goes
            to the peer's `wait_for_write`. A ``remote`` that is shorter is a ValueError, with nothing posted.
            """

        def write_many(
            self,
            pairs: Sequence[tuple[Local, RemoteBuffer]],
            *,
            notify: int | None = None,
            timeout: float | None = None,
        ) -> Operation[int]:
            """`write` each ``(view, remote)``, all of them as one Operation; value: bytes moved. Native.

            As ``Context.write_many``: many small ones, from one Memory to one handle, cost a fraction of as many calls.
            ``notify`` comes after all of them, with the sum of their bytes. Errors as for `write`.
            """

        def read(
            self,
            view: Local,
            remote: RemoteBuffer,
            *,
            timeout: float | None = None,
            stream: Stream | None = None,
        ) -> Operation[int]:
            """Fill all of ``view`` from the begin of ``remote``; value: bytes moved. Native. Errors as for `write`.

            Raises:
                ValueError: ``remote`` is shorter; ``view`` is read-only; the handle is not the peer's.
            """

    else:
        read = Poster._read_into  # the other way round than a Context's

    def wait_for_write(self, timeout: float | None = None) -> Operation[Notification]:
        """The next write of the peer's with ``notify``, which may have come already; value: its Notification.

        It is there when its bytes are. Each such write ends one wait; their order is that of arrival.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            Closed, PeerLost: the Transport is broken, and all that had arrived before was taken. From the Operation,
                too, where it breaks meanwhile; DeadlineExceeded.
        """
        self.context._check_process()
        self.context._check_open()
        self._notice()
        deadline = 0 if timeout is None else self.context._deadline(timeout)
        wait = NotificationWait(self.context, deadline, self._scope)
        if self._scope.ended is not None and wait.done():
            error = wait.exception()
            if isinstance(error, DeadlineExceeded):  # there is nothing to take, and the queue is about to end
                raise copy_of(self._scope.ended)
            if error is not None:
                raise error
        return wait

    def flush(self, *, timeout: float | None = None) -> Operation[int]:
        """Done when all that was posted before is visible at the peer; value: 0."""
        self._notice()
        self._check()
        connection = self._scope.connection
        if connection is None:
            raise self._not_connected()
        operation = connection.flush(timeout=self._timeout(timeout))
        self._scope.note(operation)
        return operation

    # The end

    def abort(self) -> None:
        """End all that is pending with Closed, and have every later call raise that; returns at once. Idempotent.

        Buffers of what was in flight stay pinned until nothing can touch them. The peer's end breaks, too.
        """
        self._end(Closed("this Transport was aborted"), 0)

    def close(self, timeout: float = 5.0) -> None:
        """The same in good order: what has ended is visible at the peer, and announced there, before that is told.

        A Context of its own is closed. Idempotent.

        Args:
            timeout: seconds that this takes at most.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number; the Transport stays open.
        """
        deadline = time.monotonic() + seconds_of(timeout)
        self._end(Closed("this Transport is closed"), timeout)
        if self._owned:
            self.context.close(max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        # __init__ may not have come far.
        if not hasattr(self, "_joining") or self.context._forked:
            return
        self._end(Closed("this Transport was dropped"), 0)
        if self._owned and not self.context._gone:
            # This may be any thread, also one that closing waits for.
            threading.Thread(target=self.context.close, args=(0,), daemon=True).start()

    def __repr__(self) -> str:
        ended = self._scope.ended
        state = str(ended) if ended is not None else "connected" if self._joining.peer else "not connected"
        return f"<Transport on {self.device}, {state}>"

    # For the rest of the module

    def _notice(self) -> None:
        """Whoever was told by the data plane that the peer is gone finds this broken, before the control thread is.

        Not for transfers: those it tells itself.
        """
        connection = self._scope.connection
        if connection is None or self._scope.ended is not None or self.context._forked or self.context._closed:
            return
        try:
            connection._check_alive()
        except ZerohopError as error:
            self._catch_up(connection)
            self._break_of(error)

    def _check(self) -> None:
        self.context._check_process()
        self._scope.check()
        self.context._check_open()

    def _not_connected(self) -> ZerohopError:
        return PeerLost("this Transport has no peer yet", fix="connect() first, or wait until the peer has")

    def _timeout(self, timeout: float | None) -> float | None:
        return self._timeout_s if timeout is None else timeout

    def _deadline(self, timeout: float | None) -> int:
        return self.context._deadline(self._timeout(timeout))

    def _transfer(
        self,
        kind: str,
        view: Local,
        remote: RemoteBuffer,
        notify: int | None,
        timeout: float | None,
        stream: Stream | None,
    ) -> Operation[int]:
        self._check()
        if self._scope.connection is None:
            raise self._not_connected()
        return transfer.transfer(
            self.context, kind, view, remote, notify, self._timeout(timeout), stream=stream, scope=self._scope
        )

    def _meet(self, connection: Connection, queue: int) -> bool:
        """On the control thread: there is the peer. False where this end has ended meanwhile, which that is to hear."""
        # Of a Context that talks to itself, the end that its transfers use.
        connection = self.context._peers.connected.get(connection.peer, connection)
        self._scope.meet(connection, queue)
        self._begin_posting(
            self.context._engine,
            InFlight,
            Finished,
            _write,
            _write_many,
            _read,
            self._timeout_ns,
            self.context,
            connection,
            queue,
            self._scope.group,
        )
        if self._scope.ended is None:
            return True
        self._stop_posting()
        return False

    def _left(self) -> None:
        """On the control thread: the peer has closed its end."""
        connection = self._scope.connection
        if connection is not None:
            self._catch_up(connection)
            error = PeerLost("the peer closed its Transport", peer=self.peer)
            self._break(error, Status.PEER_LOST, Reason.PEER_CLOSED)

    def _connection_lost(self, connection: Connection, error: ZerohopError) -> None:
        self._joining.lost(connection)
        known = self._scope.connection
        if known is not None and known.peer == connection.peer:
            self._break_of(error)

    def _break_of(self, error: ZerohopError) -> None:
        """The Connection is lost, and all that had come over it is there."""
        closed = isinstance(error, Closed)
        status = Status.CLOSED if closed else Status.PEER_LOST
        self._break(copy_of(error), status, Reason.OWNER_CLOSED if closed else Reason.PEER_CLOSED)

    def _catch_up(self, connection: Connection) -> None:
        """What the peer has announced may be under way still, on a lane that is read when somebody looks."""
        # Of a Context that talks to itself, the end that hears.
        end = connection._partner or connection
        try:
            self.context._engine.catch_up(end._native_id)
        except NativeError:
            # The Context is closed, and nothing can be taken any more.
            pass

    def _break(self, error: ZerohopError, status: Status, reason: Reason) -> None:
        self._scope.end(error, status, reason)
        # After that: `_meet` looks whether this has ended once it has begun to post.
        self._stop_posting()

    def _end(self, error: Closed, flush_s: float) -> None:
        """From this side; first waiting, so long at most, until what has ended is visible at the peer."""
        context = self.context
        if context._forked:
            self._stop_posting()
            self._scope.abandon(error)
            return
        if self._scope.ended is None:
            self._break(error, Status.CLOSED, Reason.OWNER_CLOSED)
            # After that: where the peer is met at this moment, either this or `_meet` sees the other.
            connection = self._scope.connection
            if connection is not None and not context._closed:
                if flush_s:
                    try:
                        connection.flush(timeout=flush_s).result()
                    except ZerohopError:
                        # Whoever is to be told may be gone, or stand still.
                        pass
                context._control.call(pairing.tell, connection, self._joining.peer, self._joining.id)
        self._scope.close()
        self._joining.end()
        context._owners.pop(self._joining.id, None)


def _write(
    self: Transport,
    view: Local,
    remote: RemoteBuffer,
    *,
    notify: int | None = None,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    """Transport.write, where its native part posted nothing."""
    return self._transfer("write", view, remote, notify, timeout, stream)


def _read(
    self: Transport,
    view: Local,
    remote: RemoteBuffer,
    *,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    """Transport.read, where its native part posted nothing."""
    return self._transfer("read", view, remote, None, timeout, stream)


def _write_many(
    self: Transport,
    pairs: Sequence[tuple[Local, RemoteBuffer]],
    *,
    notify: int | None = None,
    timeout: float | None = None,
) -> Operation[int]:
    """Transport.write_many, where its native part posted nothing."""
    self._check()
    if self._scope.connection is None:
        raise self._not_connected()
    return write_many.write_many(self.context, pairs, notify=notify, timeout=self._timeout(timeout), scope=self._scope)
