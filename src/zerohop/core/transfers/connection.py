"""Declares Connection, the live link to one peer Context."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from zerohop._native import NativeError, Reason, Status
from zerohop.core.base.deadlines import seconds_of
from zerohop.core.base.resource import Closeable, NotCopyable
from zerohop.core.memory.access import layout_of, offset_of, region_of
from zerohop.core.memory.layouts import IN_ORDER, without_order
from zerohop.core.memory.register import view_of
from zerohop.core.runtime.deferred import all_ended, defer, unfinished
from zerohop.core.runtime.native_operation import BYTES_DONE, NBYTES, InFlight, begun
from zerohop.core.runtime.operation import Failed
from zerohop.core.transfers.message_lane import (
    NOTIFIED,
    RECEIVED,
    SENT,
    flush_lanes,
    message_bytes,
    notify_post,
    notify_value,
    post_message,
)
from zerohop.core.transfers.queue_wait import QueueWait
from zerohop.errors import Closed, from_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Op
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.operation import Operation


class Connection(Closeable, NotCopyable):
    """Connects to one peer Context; made by ``Context.connect``, by the first use of a RemoteBuffer, or by the peer.

    There is one per peer and Context, whichever side made it. When the peer dies, every operation to it ends with
    PeerLost, and the next use of the same address connects anew, with a new Connection.

    It has one lane for messages, and one more for each other provider that a transfer has wanted. When a lane between
    NICs breaks while the peer lives, operations in flight on it end with PeerLost ("lane reset"), and another lane
    takes its place; operations that were not posted yet wait for that lane.

    Attributes:
        peer: id of the peer Context.
        url: address at which the peer can be reached.
        name: name that the peer gives itself.
    """

    __slots__ = ("__weakref__", "_core", "_link", "name", "peer", "url")

    _copy_refusal = "a Connection stays in its process, and is not copied; send its url, and connect() to that there"

    def __init__(self, core: Core, link: PeerLink) -> None:
        self._core = core
        self._link = link
        self.peer = link.peer
        self.url = link.url
        self.name = link.name

    @property
    def alive(self) -> bool:
        """Tell whether operations can be posted: the Connection is neither closed here nor known to be lost."""
        return self._link.alive

    @property
    def provider(self) -> str:
        """Return the provider of the lane that messages and notifications take, such as ``"shm"``."""
        return self._link.provider

    def send(self, source: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Send bytes to whichever ``recv`` of the peer is next in order; value: bytes sent.

        Done means that the source may be reused and the peer has accepted every byte. Messages of one Connection
        arrive in the order in which they were sent. A message is withdrawn if it is cancelled, or its deadline passes,
        before the peer has received it.

        Args:
            source: a Memory, a View, or any object that ``Context.register`` takes.
            timeout: seconds, for the operation; None: the Context's.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        return self._send(source, timeout, nowait=False)

    def send_nowait(self, source: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Send like ``send``, but post nothing and raise WouldBlock if the lane is full."""
        return self._send(source, timeout, nowait=True)

    def _send(
        self,
        source: Memory | View | Any,
        timeout: float | None,
        *,
        nowait: bool,
        envelope: tuple[int, int, int] | None = None,
        header: bytes | None = None,
    ) -> Operation[int]:
        core, link = self._core, self._link
        view = view_of(core, source)
        if layout_of(view) not in IN_ORDER:  # no call: each message waits for this
            raise without_order()
        deadline = core.deadline(timeout)

        def post(nowait: bool) -> int | Op:
            return core.engine.post_send(
                link.endpoint, region_of(view), offset_of(view), view.nbytes, deadline, nowait, envelope, header
            )

        return post_message(core, link, "send", view, deadline, post, NBYTES, nowait=nowait, room=SENT)

    def recv(self, into: Memory | View | Any, *, timeout: float | None = None) -> Operation[int]:
        """Receive the next message of this peer; value: its length. ``Context.recv`` receives those of all.

        Done means that the bytes are in ``into``. A message that is longer than ``into`` fails this Operation.

        Args:
            into: a Memory, a View, or any object that ``Context.register`` takes.
            timeout: seconds, for the operation; None: none, it waits until a message comes or the peer is gone.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        core, link = self._core, self._link
        view = room_for_message(core, into)
        deadline = 0 if timeout is None else core.deadline(timeout)
        # A Context that talks to itself sends at one end and receives at the other.
        source = link if link.partner is None else link.partner

        def post(nowait: bool) -> Op:
            return core.engine.post_recv(
                source.endpoint, region_of(view), offset_of(view), view.nbytes, deadline, nowait
            )

        return post_message(core, link, "recv", view, deadline, post, BYTES_DONE, room=RECEIVED, over=source)

    def notify(self, value: int, *, message: bytes | None = None, timeout: float | None = None) -> Operation[int]:
        """Give the peer a notification without data; value: 0. Done means that the peer's Context has it.

        Raises:
            ValueError: more than 32 bits, or a message of more than 256 bytes.
            Closed: at once. Everything else comes from the Operation.
        """
        return self._notify(value, message, timeout, nowait=False)

    def notify_nowait(
        self, value: int, *, message: bytes | None = None, timeout: float | None = None
    ) -> Operation[int]:
        """Notify like ``notify``, but post nothing and raise WouldBlock if the lane is full."""
        return self._notify(value, message, timeout, nowait=True)

    def _notify(self, value: int, message: bytes | None, timeout: float | None, *, nowait: bool) -> Operation[int]:
        core, link = self._core, self._link
        number = notify_value(value, "value")
        if message is not None:
            message = message_bytes(value, message)
        deadline = core.deadline(timeout)
        post = notify_post(core, link, number, deadline, message)
        return post_message(core, link, "notify", None, deadline, post, NBYTES, nowait=nowait, room=NOTIFIED)

    def flush(self, *, timeout: float | None = None) -> Operation[int]:
        """Flush: done when all that was posted to this peer before is visible there, done or failed; value: 0."""
        core, link = self._core, self._link
        deadline = core.deadline(timeout)
        before = unfinished(core, link.peer, link.native_id)
        # The peer may still be placing bytes that came over lanes that are down.
        gone = link.session is not None and link.session.lanes.draining
        if link.lost is None and (before or gone or link.message_lane is None or len(link.lanes) > 1):

            async def work() -> int:
                await all_ended(before)
                await flush_lanes(core, link, deadline)
                return 0

            return defer(core, "flush", 0, deadline, work, None)

        def post(_: bool) -> int | Op:
            return core.engine.post_flush(link.endpoint, deadline)

        return post_message(core, link, "flush", None, deadline, post, NBYTES)

    def statistics(self) -> dict[str, int]:
        """Return counters of the lanes that are up, by name, since each was made."""
        self._core.check_process()
        sums: dict[str, int] = {}
        for lane in self._link.lanes.values():
            for name, count in lane.endpoint.statistics().items():
                sums[name] = sums.get(name, 0) + count
        return sums

    def close(self, timeout: float = 5.0) -> None:
        """Close the Connection; idempotent. Operations in flight end with Closed here, with PeerLost at the peer.

        Raises:
            ValueError, TypeError: ``timeout`` is negative, NaN or no number of seconds. The Connection stays open.
        """
        core, link = self._core, self._link
        if link.lost is None and not core.forked and not core.closed:
            seconds = seconds_of(timeout)
            error = Closed("this Connection was closed", fix="connect again", peer=self.peer)
            core.control.wait(self._close, error, timeout=seconds)

    async def _close(self, error: Closed) -> None:
        # Imported here because it imports asyncio, and this module comes with the package.
        from zerohop.core.peers import teardown

        farewell = "the peer closed the Connection"
        await teardown.close(self._core, self._link, farewell, error, Status.CLOSED, Reason.LANE_CLOSED)

    def __repr__(self) -> str:
        state = "alive" if self.alive else "lost"
        return f"<Connection to {self._link.label} over {self.provider or 'nothing yet'}, {state}>"


def send_to_mailbox(
    connection: Connection,
    source: Memory | View | Any,
    envelope: tuple[int, int, int],
    timeout: float | None,
    *,
    nowait: bool = False,
    header: bytes | None = None,
) -> Operation[int]:
    """Send a message to a mailbox of the peer; ``envelope``: its number, the sender's number, and the tag.

    ``header``: up to 256 bytes that a receive with a finder's number learns beside the tag.

    Done means that the source may be reused: a message of up to 8 KiB of host memory may still wait at the peer.
    Errors as of ``Connection.send``, and with ``nowait`` as of ``Connection.send_nowait``.
    """
    return connection._send(source, timeout, nowait=nowait, envelope=envelope, header=header)


class Received(NamedTuple):
    """Describes a message that ``Context.recv`` has received.

    Attributes:
        nbytes: its length.
        peer: the Connection by which it came.
    """

    nbytes: int
    peer: Connection


class _Receive(InFlight[Received]):
    """Represents a receive of the next message of any peer."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Received:
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def _value_of(self, native: Op) -> Received:
        core: Any = self._core
        return Received(native.bytes_done, core.connection_of(native.value))


def receive(core: Core, into: Memory | View | Any, timeout: float | None) -> Operation[Received]:
    """Do Context.recv."""
    view = room_for_message(core, into)
    deadline = 0 if timeout is None else core.deadline(timeout)
    core.check_open()
    try:
        posted = core.engine.post_receive(region_of(view), offset_of(view), view.nbytes, deadline)
    except NativeError as error:
        core.check_open()
        return Failed(core, "recv", None, view.nbytes, from_native(*error.args, operation="recv"))
    return begun(_Receive(), core, "recv", view.nbytes, posted, view)


def room_for_message(core: Core, into: Memory | View | Any) -> Memory | View:
    """Return the memory that a message goes into; raise ValueError if it cannot."""
    view = view_of(core, into)
    if view.readonly:
        raise ValueError("cannot receive into read-only memory")
    if layout_of(view) not in IN_ORDER:  # no call: each message waits for this
        raise without_order()
    return view


class AcceptWait(QueueWait["Connection"]):
    """Waits for the next peer that connects by itself, at the queue of the Context's arrivals."""

    __slots__ = ()

    _made: ClassVar = None
    _kind = "accept"
    _silence = "no peer connected"


# The link of a Connection, for the rest of the core. An attrgetter makes no Python frame.
link_of: Final[Callable[[Connection], PeerLink]] = attrgetter("_link")
