"""Gives a face everything that it may use of the core; docs/faces.md shows how a face is written.

A face is a way to use a Context: pairs of ends, ranks, files, work requests of GPU kernels. It imports this module and
the public names of the package, and no other module of the core.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from zerohop._native import (
    FileAsking,
    FileQueue,
    FileServing,
    NativeError,
    PairTransfers,
    Reached,
    TaggedMessages,
    Transfers,
    begin_posting,
    stop_posting,
)
from zerohop.core.base.deadlines import deadline_after, nanoseconds_of, seconds_of, wait_with_timeout
from zerohop.core.base.peer_text import one_line, quoted
from zerohop.core.base.resource import AsyncCloseable, Closeable, NotCopyable
from zerohop.core.base.sandbox import random_bytes
from zerohop.core.context import Context
from zerohop.core.control.address import Address
from zerohop.core.control.address import parse as parse_url
from zerohop.core.lanes.imported import Kept
from zerohop.core.lanes.link import Route
from zerohop.core.lanes.path_choice import MAPPED, PEER, RDMA, RING
from zerohop.core.memory.access import is_open, may_be_replaced, offset_of, region_of, revoke_at_once, share_loosely
from zerohop.core.memory.access import memory_of as whole_of
from zerohop.core.memory.memory import Memory, View
from zerohop.core.memory.register import Local, view_of
from zerohop.core.memory.remote_buffer import RemoteBuffer, start_of
from zerohop.core.memory.rights import Rights
from zerohop.core.peers.peer_link import NOTHING_AFTER, After
from zerohop.core.peers.peer_link import PeerLink as Link
from zerohop.core.peers.queue_pairs import QueuePair, open_queue_pair
from zerohop.core.peers.service import Refusal, call, give_up, send
from zerohop.core.runtime.deferred import all_ended, defer
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.endings import Endings
from zerohop.core.runtime.explanation import Explanation
from zerohop.core.runtime.kernel_work import KernelWork, carry_out
from zerohop.core.runtime.native_operation import InFlight, begun
from zerohop.core.runtime.operation import Failed, Finished, Operation, name_errors, on_event_loop
from zerohop.core.runtime.streams import Stream
from zerohop.core.transfers.connection import Connection, send_to_mailbox
from zerohop.core.transfers.context_transfers import core_of
from zerohop.core.transfers.mailbox import Mailbox, post_messages_natively, reach_natively
from zerohop.core.transfers.many import transfer_many
from zerohop.core.transfers.message_lane import until_lane as until_messages
from zerohop.core.transfers.notification import Notification, NotificationWait
from zerohop.core.transfers.op_group import OperationGroup
from zerohop.core.transfers.posting import find_route, prepare
from zerohop.core.transfers.transfer import index_array, transfer
from zerohop.errors import from_native, too_many_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from zerohop._native import Endpoint, ServedBytes
    from zerohop.core.lifecycle import Core
    from zerohop.errors import ZerohopError

__all__ = [
    "HOST",
    "NOTHING_AFTER",
    "RDMA",
    "Address",
    "After",
    "Closeable",
    "Connection",
    "Context",
    "Endings",
    "Explanation",
    "Face",
    "Finished",
    "InFlight",
    "KernelWork",
    "Link",
    "Local",
    "Mailbox",
    "Memory",
    "NotCopyable",
    "Notification",
    "NotificationWait",
    "Operation",
    "OperationGroup",
    "PairTransfers",
    "QueuePair",
    "Refusal",
    "RemoteBuffer",
    "Rights",
    "Route",
    "Stream",
    "TaggedMessages",
    "View",
    "all_ended",
    "begun",
    "call",
    "carry_out",
    "check_device",
    "deadline_after",
    "endings_of",
    "give_up",
    "index_array",
    "is_connected",
    "is_open",
    "keep_reached",
    "may_be_replaced",
    "name_errors",
    "offset_of",
    "on_event_loop",
    "one_line",
    "open_pair_for",
    "parse_url",
    "post_messages_natively",
    "quoted",
    "random_bytes",
    "reach_natively",
    "region_of",
    "seconds_of",
    "send",
    "send_to_mailbox",
    "start_of",
    "stop_posting",
    "transfer",
    "transfer_many",
    "until_messages",
    "wait_with_timeout",
    "whole_of",
]

T = TypeVar("T")
S = TypeVar("S")


class Face(AsyncCloseable, NotCopyable):
    """Holds the Context of one object of a face, and hears when a peer is lost.

    The constructor of a subclass ends with ``_join_context``, its ``close`` with ``_leave_context`` and
    ``_close_context``. Methods with an underscore are for subclasses alone. Of ``_core`` they use ``check_open()``,
    ``check_process()``, ``closed``, ``forked`` and ``deadline()``.

    Attributes:
        context: the Context that it uses.
    """

    _ended = False
    _copy_refusal = "an object of a face stays in its process, and is not copied; make one in each process"

    def __init__(self, ctx: Context | None, settings: Mapping[str, Any], timeout: float | None) -> None:
        """Use a Context, or open one that is closed with this object.

        Args:
            ctx: the Context; it may have several faces, and stays open. None: a new one is opened with ``settings``.
            settings: arguments of Context, for a new one.
            timeout: seconds for each operation unless the call says otherwise, ``math.inf`` for none; None: the
                Context's.

        Raises:
            TypeError: ``ctx`` is no Context.
            ValueError: settings beside a Context; ``timeout`` is negative or NaN.
            Closed: the Context is closed.
            Unsupported, RegistrationFailed: the errors of Context.
        """
        if "context" in settings:
            raise TypeError("the Context is passed as ctx=, not as context=")
        if ctx is not None and not isinstance(ctx, Context):
            raise TypeError(f"ctx is a zerohop.Context, or None for a new one, not {type(ctx).__name__}")
        if ctx is not None and settings:
            raise ValueError(f"{', '.join(settings)}: settings of a Context, beside one that is open already")
        self._owns_context = ctx is None
        self.context = ctx if ctx is not None else Context(**settings)
        self._core: Core = core_of(self.context)
        try:
            self._core.check_open()
            self._timeout_s = timeout if timeout is None else seconds_of(timeout)
            self._timeout_ns = self._core.timeout_ns if timeout is None else nanoseconds_of(timeout)
        except BaseException:
            self._close_context()
            raise
        self._watch = _Watch(self)

    def _join_context(self) -> None:
        """Hear of lost peers from now on. A constructor calls this last."""
        self._core.watchers[id(self)] = self._watch

    def _leave_context(self) -> None:
        """Hear of no lost peer any more. ``close`` calls this, on any thread."""
        self._core.watchers.pop(id(self), None)
        self._core.posters.pop(id(self), None)

    def _end_once(self, end: Callable[[], object]) -> None:
        """Do what ends the object, for ``close``. The next call does it from its start if a signal's handler cut it."""
        if not self._ended:
            end()
            self._ended = True

    def _close_context(self, timeout: float = 5.0) -> None:
        """Close the Context if this object has opened it."""
        if self._owns_context:
            self.context.close(timeout)

    def _drop_context(self) -> None:
        """Close the Context if this object has opened it; for destructors, which must not wait."""
        if self._owns_context and not self._core.gone:
            # Not by a thread of this object's: the Context may be dropped together with it, and closes itself then.
            self._core.close_dropped()

    def _timeout_of(self, timeout: float | None) -> float | None:
        """Return the time limit of a call in seconds: ``timeout``, or else this object's; None: the Context's."""
        return self._timeout_s if timeout is None else timeout

    def _deadline(self, timeout: float | None) -> int:
        """Return a call's deadline, in nanoseconds of the monotonic clock; 0: none."""
        return self._core.deadline(self._timeout_of(timeout))

    def _finished(self, kind: str, value: T, *, nbytes: int = 0, path: Any = None) -> Operation[T]:
        """Return an Operation that has ended well with this value; ``nbytes`` and ``path`` as for ``_defer``."""
        return Finished(self._core, kind, path, nbytes, value, 0)

    def _failed(self, kind: str, error: ZerohopError) -> Operation[Any]:
        """Return an Operation that has failed."""
        return Failed(self._core, kind, None, 0, error)

    def _view(self, x: Local) -> Memory | View:
        """Return the memory that an argument names, which is registered through the cache if it is an array.

        Raises:
            TypeError, ValueError, Closed, ...: as ``Context.register``.
        """
        return view_of(self._core, x)

    def _lend(self, view: Memory | View, rights: Rights, *, once: bool) -> tuple[RemoteBuffer, int]:
        """Return a handle for a peer, and the offset of this range in the memory that the handle names.

        With ``once`` it is a handle of exactly this range, until ``_take_back``; else one of all the Memory, made once.
        Either ends with the Memory and does not keep it alive: transfers have to do that.

        Raises:
            ValueError: the memory does not have these rights.
            Closed: the Memory or its Context is closed.
        """
        if once:
            return share_loosely(view, rights), 0
        memory = whole_of(view)
        # Both offsets count from the start of the registration, which Memories may share.
        return self._core.shares.whole_of(memory, rights, loose=True), offset_of(view) - offset_of(memory)

    def _take_back(self, view: Memory | View, handle: RemoteBuffer) -> None:
        """Let no transfer begin any more with a handle that was lent once. Waits for no peer."""
        revoke_at_once(whole_of(view), handle)

    def _file_queue(self, depth: int, threads: int, staging_bytes: int, *, uring: bool) -> FileQueue:
        """Return what carries out the transfers between files and memory of this Context."""
        self._core.beside_lanes = True
        try:
            return FileQueue(self._core.engine, depth, threads, staging_bytes, uring)
        except NativeError as error:
            raise from_native(*error.args, operation="open_store") from None
        except OSError:  # a thread that cannot be started
            raise too_many_threads("open_store") from None

    def _file_asking(self, link: Link) -> FileAsking | None:
        """Return what asks a server for transfers over the lane for messages. On the control thread.

        None if there is no such lane, or it is not a ring in memory, as processes of one host have.
        """
        lane = _ring_of(link)
        if lane is None:
            return None
        self._core.beside_lanes = True
        return FileAsking(self._core.engine, lane)

    def _file_serving(self, link: Link, files: FileQueue, answers: int, count: ServedBytes) -> FileServing | None:
        """Return what carries out the transfers that a client asks for so; None as ``_file_asking``.

        ``answers`` is the client's queue of notifications for them, and ``count`` counts the bytes. On the control
        thread.
        """
        lane = _ring_of(link)
        return None if lane is None else FileServing(files, lane, answers, count)

    def _defer(
        self,
        kind: str,
        deadline_ns: int,
        work: Callable[..., Coroutine[Any, Any, T]],
        *,
        nbytes: int = 0,
        keep: object = None,
        path: Any = None,
        peer: str = "",
        wants_operation: bool = False,
        at_end: Callable[[], object] | None = None,
        part: Operation[Any] | None = None,
    ) -> Operation[T]:
        """Return an Operation whose value is that of a coroutine, which the control thread runs.

        Args:
            kind: name of the operation.
            deadline_ns: on the monotonic clock; 0: none.
            work: the coroutine function.
            nbytes: bytes that it moves.
            keep: stays alive until the operation has ended.
            path: what ``explain()`` tells of.
            peer: id of the peer's Context; a flush to it waits for this operation.
            wants_operation: ``work`` takes the operation, as its last argument. It posts by that what moves its bytes
                (``carry`` if that does all, else ``go_on`` and ``made_of``), and may tell how many have moved
                (``moved``).
            at_end: called on the control thread when ``work`` has ended or was cancelled.
            part: an operation that was posted for this one, as if by ``carry``.
        """
        return defer(
            self._core,
            kind,
            nbytes,
            deadline_ns,
            work,
            keep,
            peer=peer,
            path=path,
            wants_operation=wants_operation,
            at_end=at_end,
            part=part,
        )

    def _post_natively(self, long_way: tuple[object, object, object], group: OperationGroup, queue: int = 0) -> None:
        """Have the native methods post to the peer of a group, and notify the peer's ``queue``; 0: its Context's own.

        ``long_way`` has the functions for write, write_many and read. The native methods call them, with this object
        and the same arguments, before there is a peer, and for calls that they cannot post.
        """
        link, core = group.link, self._core
        assert isinstance(self, Transfers)  # a face that posts natively derives from PairTransfers, too
        core.posters[id(self)] = self
        engine = None if link is None else core.engine
        functions = (prepare, *long_way)
        begin_posting(self, engine, core, InFlight, Finished, *functions, self._timeout_ns, link, queue, group.group)

    def _stop_posting(self) -> None:
        """Let the functions of ``long_way`` post everything from now on."""
        stop_posting(self)

    async def _connect(self, where: Address) -> Link:
        """Return the link to the Context at an address, and make it if there is none. On the control thread."""
        return await self._core.peers.connect(where)

    def _usable_link(self, link: Link) -> Link:
        """Return the link that transfers to that peer take; for a Context that dialled itself, the end that dialled."""
        return self._core.connected.get(link.peer, link)

    def _flush(self, link: Link, timeout: float | None) -> Operation[int]:
        """Flush everything that was posted to a peer."""
        operation: Operation[int] = self._core.connection_of(link.native_id).flush(timeout=timeout)
        return operation

    def _catch_up(self, link: Link) -> None:
        """Read the notifications of a peer that have arrived and were not read yet. Any thread may call this."""
        # A Context that talks to itself sends notifications at one end and reads them at the other.
        end = link.partner or link
        try:
            self._core.engine.catch_up(end.native_id)
        except NativeError:  # the Context is closed, and nothing can be taken any more
            pass

    async def _reach(self, view: Memory | View, remote: RemoteBuffer) -> tuple[Route, Reached | None]:
        """Return the route between two memories, and the remote one itself if this process reaches it without a lane.

        On the control thread.

        Raises:
            ZerohopError: there is no route.
        """
        route = await find_route(self._core, view, remote)
        itself = route.explanation.form in (MAPPED, PEER)
        return route, Reached(self._core.engine, route.id) if itself else None

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may block on a thread of its own. On the control thread."""
        return await self._core.control.run_in_thread(call, *args)

    def _peer_lost(self, link: Link, error: ZerohopError) -> None:
        """Handle the loss of a peer, on the control thread. A subclass overrides this."""

    def _service(self, name: str, make: Callable[[], S]) -> S:
        """Return the service of this name that the Context's peers may call; ``make()`` makes the first.

        A service is called on the control thread with the link and the bytes of the call. It returns the answer, or a
        coroutine that does, or raises Refusal.
        """
        service: Any = self._core.services.get(name)
        if service is None:
            service = self._core.services.setdefault(name, make())  # type: ignore[arg-type]  # S is callable
        return service  # type: ignore[no-any-return]

    def _end_service(self, name: str, service: object) -> None:
        """Let peers call this service no more, which has this name, or had it."""
        if self._core.services.get(name) is service:
            self._core.services.pop(name, None)

    def _on_control_thread(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the control thread soon; nothing is called once the Context is closed."""
        self._core.control.call(function, *args)


def keep_reached(route: Route) -> object:
    """Return an object that keeps the memory of a route within reach as long as it lives. On the control thread.

    Memory is otherwise given back where very many are in use and this one's route was the oldest. Its owner may take it
    back all the same. Nothing is kept of a route that is stale, or that leads over a lane.
    """
    return None if route.imported is None else Kept(route.imported)


async def open_pair_for(route: Route, messages: int, inline_bytes: int) -> QueuePair | None:
    """Open a queue pair to the peer of a route, which only kernels post to. On the control thread.

    Return None if the route does not use NICs, or its lane has gone down. ``messages``: the most requests under way.
    ``inline_bytes``: the most bytes that a request carries itself.

    Raises:
        Unsupported: the peer makes no such queue pairs, or the two cannot be connected.
        RegistrationFailed, DeviceFailed, PeerLost, DeadlineExceeded: as for a lane.
    """
    lane = route.link.lanes.get(route.lane)
    if lane is None or route.explanation.form != RDMA:
        return None
    return await open_queue_pair(route.link, lane, messages, inline_bytes)  # type: ignore[arg-type]  # links are PeerLinks


def is_connected(core: Core, context: str) -> bool:
    """Tell whether there is a connection to the Context of an id."""
    link = core.connected.get(context)
    return link is not None and link.alive


def _ring_of(link: Link) -> Endpoint | None:
    """Return this side's end of the lane for messages if that is a ring in memory."""
    lane = link.message_lane
    return None if lane is None or link.path(HOST).explanation.form != RING else lane.endpoint


def endings_of(context: Context) -> Endings[Any]:
    """Return an empty collection for Operations of a Context.

    Raises:
        LimitReached: there is no descriptor left to wait with.
        Closed: the Context is closed.
    """
    core = core_of(context)
    core.check_open()
    return Endings(core)


def check_device(context: Context, name: str) -> None:
    """Raise ValueError if a Context has no device of this name; the message names those that it has."""
    core_of(context).devices.index_of(name)


class _Watch:
    """Passes the loss of a peer on to a Face, which it does not keep alive."""

    __slots__ = ("__weakref__", "_face")

    def __init__(self, face: Face) -> None:
        self._face = weakref.ref(face)

    def peer_lost(self, link: Link, error: ZerohopError) -> None:
        """Handle the loss of a peer."""
        face = self._face()
        if face is not None:
            face._peer_lost(link, error)
