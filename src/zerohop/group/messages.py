"""Declares the Operations of a Group's receives, and their values."""

# ruff: noqa: D102 - Operation documents result()

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zerohop._native import Reason
from zerohop.core.face import InFlight
from zerohop.errors import Closed, DeadlineExceeded, PeerLost, ZerohopError
from zerohop.group.of_rank import name_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import Op
    from zerohop.core.face import Local, Mailbox, Operation

# Longest message of host memory that ends for its sender before it is received.
SHORT = 8 << 10
GO_ON = "go on without it, or start the program again"
_TAG_BITS = 32
MOST_TAG = (1 << _TAG_BITS) - 1
_SOURCE_BITS = 31
_MOST_SOURCE = (1 << _SOURCE_BITS) - 1
# In the native value of a receive, above the source and the tag: the message has a header.
_HAS_HEADER = 1 << (_TAG_BITS + _SOURCE_BITS)


class Message(NamedTuple):
    """Describes a message that has been received.

    Attributes:
        source: the rank that has sent it.
        tag: its tag.
        nbytes: its length.
    """

    source: int
    tag: int
    nbytes: int


class Arrival:
    """Describes a message that has arrived, and has still to be received. It goes to nobody else.

    When this object is dropped before ``recv``, other receives may take the message.

    Attributes:
        source: the rank that has sent it.
        tag: its tag.
        nbytes: its length.
        header: what ``am(header=...)`` has sent beside it; else empty.
    """

    __slots__ = ("_found", "header", "nbytes", "source", "tag")

    def __init__(self, source: int, tag: int, nbytes: int, found: Found) -> None:
        self.source = source
        self.tag = tag
        self.nbytes = nbytes
        self.header = found.header
        self._found = found

    def recv(self, into: Local, *, timeout: float | None = None) -> Operation[Message]:
        """Receive the message.

        Args:
            into: a Memory, a View, or any object that ``Context.register`` takes, of the host or a GPU, with room for
                the message.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: those of ``Group.recv``; PeerLost also if the
                sender has given the message up, or it was received before.
        """
        return self._found.claim(self.source, into, timeout)

    def __repr__(self) -> str:
        return f"<Arrival of {self.nbytes} bytes from rank {self.source}, tag {self.tag}>"


class Found:
    """Stands for a message that a receive finds, or will find, and gives it back when it is dropped."""

    # If __init__ failed, there is nothing to give back.
    _native: Op | None = None
    _claiming: Operation[Message] | None = None
    _claimed = False
    # The header of the message, once the receive has ended: the sender's own, or a handle of the bytes (direct.py).
    header = b""
    offer = b""

    def __init__(
        self,
        mailbox: Mailbox,
        losses: dict[int, ZerohopError],
        number: int,
        deadline: Callable[[float | None], int],
        *,
        offers: bool = False,
    ) -> None:
        """Stand for what the receive with this number finds; ``offers``: headers are handles of the bytes."""
        self._mailbox = mailbox
        self._losses = losses
        self.number = number
        self._deadline = deadline
        self._offers = offers

    def find(self, native: Op) -> None:
        """Note the receive."""
        self._native = native

    def take_header(self) -> None:
        """Take the header of the message, because it has one."""
        header = self._mailbox.header(self.number)
        if not header:  # it was taken before
            return
        if self._offers:
            self.offer = header
        else:
            self.header = header

    def received(self) -> None:
        """Note that the message has been received with the receive itself."""
        self._claimed = True

    def claim(self, source: int, into: Local | None, timeout: float | None) -> Operation[Message]:
        """Receive the message, unless that was begun before and has not failed; ``into``: None if it was read."""
        if self._claimed or (self._claiming is not None and not _has_failed(self._claiming)):
            raise Closed("this message was received already", fix="keep what the first recv() gave")
        receive = GroupReceive(source, self._losses)
        self._claiming = self._mailbox.claim(receive, self.number, into, self._deadline(timeout))
        return self._claiming

    def __del__(self) -> None:
        native, claiming = self._native, self._claiming
        if native is not None and not self._claimed and (claiming is None or _has_failed(claiming)):
            native.cancel()
            self._mailbox.release(self.number)


def end_quietly(operation: Operation[Any]) -> None:
    """Cancel an operation if it has not ended; its error then counts as seen."""
    operation.cancel()
    _has_failed(operation)


def outcome_of(operation: Operation[Any]) -> object:
    """Return the value or the error of an operation that has ended; its error then counts as seen."""
    from concurrent.futures import CancelledError

    try:
        return operation.result(0)
    except (CancelledError, ZerohopError) as error:
        return error


def has_succeeded(operation: Operation[Any]) -> bool:
    """Tell whether an operation has ended well."""
    return operation.done() and not isinstance(outcome_of(operation), BaseException)


def _has_failed(operation: Operation[Any]) -> bool:
    """Tell whether an operation is over and has moved nothing; its error then counts as seen."""
    return operation.done() and not has_succeeded(operation)


class _Receive(InFlight[Message]):
    """Represents what waits for a message.

    Its errors name the rank that was waited for, and PeerLost the one that is gone.
    """

    __slots__ = ("_losses", "_source")

    def __init__(self, source: int | None, losses: dict[int, ZerohopError]) -> None:
        """Wait for a rank; None: any. ``losses``: why each lost rank is gone."""
        self._source = source
        self._losses = losses

    def _value_of(self, native: Op) -> Message:
        self.nbytes = native.bytes_done
        return Message(native.value >> _TAG_BITS & _MOST_SOURCE, native.value & MOST_TAG, native.bytes_done)

    def _error_of(self, native: Op) -> BaseException:
        error = super()._error_of(native)
        if not isinstance(error, ZerohopError):
            return error
        rank = self._source
        if isinstance(error, PeerLost) and native.reason != Reason.GIVEN_UP:
            rank = native.value >> _TAG_BITS & _MOST_SOURCE
            why = self._losses.get(rank)
            if why is not None:
                return replace(error, reason=why.reason, fix=GO_ON, ranks=why.ranks)
        if rank is not None:
            name_rank(rank, error)
            return error
        if isinstance(error, DeadlineExceeded):
            lost = sorted(self._losses)
            text = "; ".join(["no rank has sent", *(f"rank {each} is gone" for each in lost)])
            return replace(error, reason=text, ranks=tuple(lost))
        return error

    def _complete(self, error: ZerohopError) -> None:
        if self._source is not None:
            name_rank(self._source, error)


class GroupReceive(_Receive):
    """Represents a receive of a Group. Native code makes most of these objects (native/bind/messages.cpp)."""

    __slots__ = ()

    def __init__(self, source: int | None, losses: dict[int, ZerohopError]) -> None:
        super().__init__(source, losses)
        self._message = Message  # the class of the value, which native code then makes


class GroupProbe(_Receive):
    """Represents a receive that leaves messages: longer ones than its memory, and those that can be read.

    The value is then an Arrival.
    """

    __slots__ = ("_found", "_room")

    def __init__(self, source: int | None, losses: dict[int, ZerohopError], found: Found, room: int = -1) -> None:
        """Wait for a rank; None: any. ``room``: bytes of the memory; -1: there is none."""
        super().__init__(source, losses)
        self._found = found
        self._room = room

    def result(self, timeout: float | None = None) -> Any:
        try:
            return self._outcome(timeout)
        finally:
            del self  # which has its error, whose traceback has this frame

    def _begin(self, core: Any, kind: str, path: Any, nbytes: int, native: Op, keep: object) -> None:
        self._found.find(native)
        super()._begin(core, kind, path, nbytes, native, keep)

    def _value_of(self, native: Op) -> Any:
        message = super()._value_of(native)
        if native.value & _HAS_HEADER:
            self._found.take_header()
        if message.nbytes > self._room or self._found.offer:
            return Arrival(*message, self._found)
        self._found.received()
        return message

    @property
    def header(self) -> bytes:
        """Return the header of the message that was received, once it was; empty if it has none."""
        return self._found.header
