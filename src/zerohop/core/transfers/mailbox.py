"""Declares Mailbox, where a member of a group receives tagged messages of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from zerohop._native import NativeError, Reason, Status, begin_messages, reach
from zerohop.core.memory.access import offset_of, region_of
from zerohop.core.memory.register import known
from zerohop.core.runtime.devices import HOST
from zerohop.core.runtime.native_operation import InFlight, begun
from zerohop.core.runtime.operation import Failed, Finished
from zerohop.core.transfers.connection import room_for_message
from zerohop.core.transfers.message_lane import SENT
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Op, Region, TaggedMessages, Tally
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.operation import Operation
    from zerohop.core.transfers.connection import Connection

T = TypeVar("T")
# A dictionary and a key, whose value is true as long as earlier messages wait for something.
Gate: TypeAlias = "tuple[dict[Any, Any], Any]"
_ANY = -1


class Mailbox:
    """Receives the messages that others send to its number.

    A message goes to the oldest receive that admits it, and a receive takes the oldest message that it admits; messages
    of one sender are in the order of sending. They may come before the mailbox is opened.

    Attributes:
        number: what the senders have to know, an int of 64 bits.
    """

    def __init__(self, core: Core, number: int) -> None:
        """Open the mailbox of a number, which must be one that others cannot guess."""
        self._core = core
        self.number = number
        core.engine.open_mailbox(self.number)

    def receive(
        self,
        operation: InFlight[T],
        into: Memory | View | Any,
        source: int | None,
        tag: int | None,
        deadline_ns: int,
        finder: int = 0,
        *,
        finds_described: bool = False,
    ) -> Operation[T]:
        """Receive a message into memory, or find one.

        Args:
            operation: a new object, which represents the receive. The native value of one that ends well is the
                sender's number, shifted by 32 bits to the left, and the tag; that of one that ends with the loss of a
                sender has its number likewise. Bit 63 is set if ``header`` has something for a finder.
            into: a Memory, a View, or any object that ``Context.register`` takes, with room for the message; None if a
                message is only to be found.
            source: the number of the sender; None: any.
            tag: the tag; None: any.
            deadline_ns: on the monotonic clock; 0: none.
            finder: a number of the caller's, one for each such receive: a message that is longer than the memory, or
                for which there is none, stays, and goes to nobody else until ``claim`` or ``release`` with that number.
                The receive ends well; its bytes done are the message's length.
            finds_described: also a message of more than 8 KiB, or of a GPU's memory, that has a header stays so.

        Raises:
            TypeError, ValueError, Closed: at once. Everything else comes from the Operation.
        """
        wanted = _ANY if source is None else source, _ANY if tag is None else tag
        engine = self._core.engine

        def post(region: Region | None, offset: int, nbytes: int) -> Op:
            return engine.post_tagged_receive(
                self.number, *wanted, region, offset, nbytes, deadline_ns, finder, finds_described
            )

        return self._post(operation, into, post)

    def claim(
        self, operation: InFlight[T], finder: int, into: Memory | View | Any | None, deadline_ns: int
    ) -> Operation[T]:
        """Receive the message that was found by a number; arguments, values and errors as those of ``receive``.

        ``into``: None if its bytes have come otherwise. The sender then learns that it has been received.

        PeerLost: its sender has given it up, or is gone and had not sent its bytes, or it was claimed before.
        """
        engine = self._core.engine

        def post(region: Region | None, offset: int, nbytes: int) -> Op:
            return engine.post_claim(self.number, finder, region, offset, nbytes, deadline_ns)

        return self._post(operation, into, post)

    def header(self, finder: int) -> bytes:
        """Return, once, the header of the message that a receive took or found; empty if there is none."""
        return b"" if self._core.gone else self._core.engine.take_header(self.number, finder)

    def release(self, finder: int) -> None:
        """Let others receive the message that was found by a number. Does nothing if there is none."""
        if not self._core.gone:
            self._core.engine.release_found(self.number, finder)

    def _post(
        self, operation: InFlight[T], into: Memory | View | Any | None, post: Callable[[Region | None, int, int], Op]
    ) -> Operation[T]:
        core = self._core
        view = None if into is None else room_for_message(core, into)
        core.check_open()
        nbytes = 0 if view is None else view.nbytes
        try:
            posted = post(None, 0, 0) if view is None else post(region_of(view), offset_of(view), nbytes)
        except NativeError as error:
            core.check_open()
            return Failed(core, "recv", None, nbytes, from_native(*error.args, operation="recv"))
        return begun(operation, core, "recv", nbytes, posted, view)

    def lose(self, source: int) -> None:
        """End the receives of a sender that is lost, and those of any sender.

        If there are none of any sender, the next one that finds no message ends so. Messages that are here stay.
        """
        self._core.engine.lose_member(self.number, source, Status.PEER_LOST, Reason.STREAM_CLOSED)

    def restore(self, source: int) -> None:
        """Let receives wait again for a sender that was lost, and has been started again."""
        self._core.engine.restore_member(self.number, source)

    def forget(self, link: PeerLink, more: list[int]) -> list[int]:
        """Forget a peer that is lost.

        Returns:
            those of the numbers that its messages had, and of ``more``, with which no other peer has sent: a sender
            that was started again has a new peer.
        """
        return self._core.engine.forget_member(self.number, link.native_id, more)

    def count_into(self, tally: Tally) -> None:
        """Have short messages of senders that are known counted as they arrive, and thrown away.

        Longer ones, and the first of each sender, are for receives.
        """
        self._core.engine.count_messages(self.number, tally)

    def close(self) -> None:
        """End all receives with Closed. Those who send are told that nobody receives their messages."""
        if not self._core.gone:
            self._core.engine.close_mailbox(self.number, Status.CLOSED, Reason.OWNER_CLOSED)


def post_messages_natively(
    core: Core,
    messages: TaggedMessages,
    receive: type[InFlight[Any]],
    message: type[tuple[int, int, int]],
    losses: dict[int, Any],
    greeted: set[int],
    mailbox: int,
    rank: int,
    timeout_ns: int,
) -> None:
    """Have the native methods of an object send as a rank, and receive from a mailbox.

    Args:
        core: the core of the Context.
        messages: the object.
        receive: the class of receives, with the slots ``_source`` and ``_losses``.
        message: the class of their values: source, tag, length.
        losses: goes into ``_losses``.
        greeted: the ranks from which the native methods may receive by number.
        mailbox: its number.
        rank: the sender's number.
        timeout_ns: of a send whose caller names none; 0: no limit.
    """
    core.posters[id(messages)] = messages
    classes = InFlight, Finished, receive, message
    begin_messages(messages, core.engine, core, *classes, losses, greeted, known, mailbox, rank, timeout_ns)


def reach_natively(messages: TaggedMessages, rank: int, connection: Connection, mailbox: int, gate: Gate) -> None:
    """Let the native methods send to a mailbox of a rank, over the lane that a Connection has now.

    They post nothing while the gate's value is true.
    """
    link = connection._link
    lane = link.message_lane
    if lane is not None:
        reach(messages, rank, lane.endpoint, mailbox, link.path(HOST), gate, (link.late, SENT))
