"""Declares Tagged, the messages between the ranks of a group that are received by source and tag."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zerohop.config.checks import as_int, check_int
from zerohop.group import direct
from zerohop.group.deadlines import with_grace
from zerohop.group.messages import MOST_TAG, Found, GroupProbe, end_quietly
from zerohop.group.messaging import Messaging
from zerohop.group.of_rank import of_rank

if TYPE_CHECKING:
    from zerohop.core.face import Local, Memory, Operation, View
    from zerohop.group.messages import Arrival, Message


class Tagged(Messaging):
    """Sends messages to ranks, and receives those of this rank."""

    def send(self, source: Local, rank: int, *, tag: int = 0, timeout: float | None = None) -> Operation[int]:
        """Send a message to a rank, which ``recv`` there takes; value: bytes sent.

        Done means that the source may be reused. A message of host memory of up to 8 KiB is then on its way, or waits
        at the receiver; a longer one, and one of GPU memory, has been received. Of two messages of one rank to another
        that a receive could take, it takes the earlier one. The first message connects. 256 messages between two
        Contexts may wait to be received; then a call waits for room, or on an event loop its Operation does.

        Args:
            source: a Memory, a View, or any object that ``Context.register`` takes, of the host or a GPU, of 0 bytes or
                more. A registered Memory is used as it is.
            rank: the number of the receiver, which may be this rank.
            tag: an int of 32 bits that the receiver can select by.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: PeerLost, also if the receiver closes its Group
            before it receives the message; DeadlineExceeded: it has not arrived, or not received; ProtocolError: the
            message is longer than the memory of the receive; others as of ``Connection.send``.
        """
        operation = self._messages.post_send(source, rank, tag, timeout)
        if operation is not None:
            return of_rank(operation, rank, "send")
        rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        tag = check_int("tag", as_int("tag", tag), 0, MOST_TAG)
        return of_rank(self._send(self._messages, source, rank, tag, timeout), rank, "send")

    def recv(
        self, into: Local, source: int | None = None, *, tag: int | None = None, timeout: float | None = None
    ) -> Operation[Message]:
        """Receive a message of this Group; value: a Message, which says its source, tag and length.

        A message goes to the oldest receive that admits it, and a receive takes the oldest message that it admits. What
        has arrived stays when its sender is gone. Waiting takes no time of a processor.

        Args:
            into: a Memory, a View, or any object that ``Context.register`` takes, of the host or a GPU, with room for
                the message.
            source: the rank that it is from; None: any.
            tag: its tag; None: any.
            timeout: seconds; None: none, it waits until a message comes or the rank is gone.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: PeerLost, whose text names the rank: its process
            has ended or its Context is closed, and there is no message of it, or it has given up a message that was
            being received; a receive from any rank ends so once for each rank that is lost. DeadlineExceeded;
            ProtocolError: the message is longer than ``into``; Closed: the Group is closed.
        """
        operation = self._messages.post_recv(into, source, tag, timeout)
        if operation is not None:
            return operation
        if source is not None:
            source = check_int("source", as_int("source", source), 0, self.size - 1)
        if tag is not None:
            tag = check_int("tag", as_int("tag", tag), 0, MOST_TAG)
        view = self._view(into)
        if direct.is_direct(view):
            return self._receive_directly(view, source, tag, timeout)
        return self._receive(self._messages, view, source, tag, timeout)

    def probe(
        self, source: int | None = None, *, tag: int | None = None, timeout: float | None = None
    ) -> Operation[Arrival]:
        """Wait for a message and leave it there; value: an Arrival, whose ``recv`` receives it.

        So a program learns the length before it has memory. The message goes to nobody else. Arguments and errors are
        those of ``recv``.
        """
        if source is not None:
            source = check_int("source", as_int("source", source), 0, self.size - 1)
        if tag is not None:
            tag = check_int("tag", as_int("tag", tag), 0, MOST_TAG)
        found = self._found()
        operation: Any = GroupProbe(source, self._messages.losses, found)
        return self._receive(self._messages, None, source, tag, timeout, operation, found)

    def _receive_directly(
        self, view: Memory | View, source: int | None, tag: int | None, timeout: float | None
    ) -> Operation[Message]:
        """Do ``recv`` for long messages into memory of a GPU."""
        found = self._found()
        first: Any = GroupProbe(source, self._messages.losses, found, view.nbytes)
        posted = self._receive(self._messages, view, source, tag, timeout, first, found, finds_described=True)
        deadline_ns = 0 if timeout is None else self._deadline(timeout)
        work = functools.partial(direct.receive, self._core, posted, found, view, deadline_ns)
        operation = self._defer(
            "recv",
            with_grace(deadline_ns),
            work,
            nbytes=view.nbytes,
            keep=view,
            wants_operation=True,
            at_end=functools.partial(end_quietly, posted),
            part=posted,
        )
        self._operations.note(operation)
        return of_rank(operation, source, "recv")

    def _found(self) -> Found:
        """Return what stands for a message that a receive will find."""
        messages = self._messages
        return Found(messages.mailbox, messages.losses, next(self._finders), self._deadline_by, offers=True)
