"""Declares Inbox, which receives what is sent to one completion object: active messages, and the ends of transfers."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop.errors import Closed, PeerLost, ZerohopError
from zerohop.group.completion import Ended
from zerohop.group.messages import Arrival, Found, GroupProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Memory, Operation, View
    from zerohop.group.channel import Channel
    from zerohop.group.completion import Completion
    from zerohop.group.messages import Message

# The message that tells of a transfer: its kind, and its bytes.
_SIGNAL: Final = struct.Struct("<BxxxxxxxQ")
_KINDS: Final = ("put", "get")
PACKET_BYTES: Final = 8192


def signal_of(kind: str, nbytes: int) -> bytes:
    """Return the message that tells of a transfer's end."""
    return _SIGNAL.pack(_KINDS.index(kind), nbytes)


class Inbox:
    """Keeps receives posted for the active messages and signals to a completion object, and tells it of each.

    Functions of the user's run only where somebody looks at the object, and what they raise is told to it.
    """

    def __init__(
        self,
        completion: Completion,
        messages: Channel,
        signals: Channel,
        deadline: Callable[[float | None], int],
        view_of: Callable[[bytearray], Memory | View],
        *,
        allocate: Callable[[Arrival], Any] | None,
        packet: Callable[[], Any] | None,
        depth: int,
    ) -> None:
        """Post ``depth`` receives of each kind; ``allocate`` and ``packet``: those of ``register``."""
        self._completion = completion
        self._messages = messages
        self._signals = signals
        self._deadline = deadline
        self._allocate = allocate
        self._packet = packet
        self._finders = 0
        # Receives that could not be posted, because ``packet`` has failed.
        self._owed = 0
        self._closed = False
        # The losses that were told: each receive hears of a loss, and the object is to hear of it once.
        self._told: dict[int, ZerohopError] = {}
        own = allocate is None and packet is None
        made = [_checked(packet()) for _ in range(depth)] if packet is not None else [None] * depth
        # Registered once. A message is copied out of its packet, which is used again.
        packets = _parts(bytearray(depth * PACKET_BYTES), PACKET_BYTES, view_of) if own else [None] * depth
        for each, packet_made in zip(packets, made, strict=True):
            self._post_message(each, packet_made)
        for part in _parts(bytearray(depth * _SIGNAL.size), _SIGNAL.size, view_of):
            self._post_signal(part)
        if own and completion.tally is not None:
            messages.mailbox.count_into(completion.tally)
        completion.attach(self)

    def close(self) -> None:
        """Receive no more. What has come is still told."""
        self._closed = True
        for channel in (self._messages, self._signals):
            channel.mailbox.close()
        self._completion.detach(self)

    def look(self) -> None:
        """Post the receives that are owed. The object was told of the error when it came for the first time."""
        for _ in range(self._owed):
            self._owed -= 1
            if self._post_message(None) is not None:
                return

    def _post(self, channel: Channel, into: Any, told: Callable[[Operation[Any]], Ended | None]) -> None:
        if self._closed:
            return
        self._finders += 1
        room = -1 if into is None else _nbytes_of(into)
        found = Found(channel.mailbox, channel.losses, self._finders, self._deadline)
        operation: Any = _Posted(None, channel.losses, found, room)
        try:
            posted = channel.mailbox.receive(operation, into, None, None, 0, found.number)
        except Closed:  # the Context is closed
            return
        self._completion.watch(posted, told)

    def _post_message(self, own: _Part | None, packet: Any = None) -> Exception | None:
        """Post a receive of an active message; return why there is no memory for it. ``packet``: if it is made."""
        if own is not None:
            packet = own.view
        elif self._packet is not None and packet is None and not self._closed:
            try:
                packet = _checked(self._packet())
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything; the object is told
                self._owed += 1
                return error
        self._post(self._messages, packet, functools.partial(self._has_message, own, packet))
        return None

    def _post_signal(self, part: _Part) -> None:
        self._post(self._signals, part.view, functools.partial(self._has_signal, part))

    def _has_message(self, own: _Part | None, packet: Any, operation: Operation[Message | Arrival]) -> Ended | None:
        """Describe the end of a receive of active messages, and post the next one."""
        try:
            found = operation.result(0)
        except Closed:
            return None
        except ZerohopError as error:
            self._post_again(own)
            return self._lost(error)
        if isinstance(found, Arrival):
            self._post_again(own)
            return None if self._closed else self._take(found)
        data = packet[: found.nbytes] if own is None else own.content(found.nbytes)
        header: bytes = operation.header  # type: ignore[attr-defined]  # those of an Inbox are GroupProbes
        self._post_again(own)
        return Ended("am", found.source, found.tag, found.nbytes, data, header=header)

    def _post_again(self, own: _Part | None) -> None:
        error = self._post_message(own)
        if error is not None:
            self._completion.note(Ended("am", -1, 0, 0, error=error))

    def _take(self, arrival: Arrival) -> Ended | None:
        """Receive a message into memory of its length; return an error that keeps it from that."""
        target: Any = None
        why: Exception | None = None
        try:
            target = None if self._allocate is None else self._allocate(arrival)
            target = bytearray(arrival.nbytes) if target is None else target
            receiving = arrival.recv(target)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything, and return anything
            # The message would otherwise come to the next receive, again and again.
            why, receiving = error, arrival.recv(bytearray(0))
        self._completion.watch(receiving, functools.partial(_received, arrival, target, why))
        return None

    def _has_signal(self, part: _Part, operation: Operation[Message | Arrival]) -> Ended | None:
        """Describe the transfer that a signal tells of, and post the next receive."""
        try:
            found = operation.result(0)
        except Closed:
            return None
        except ZerohopError:  # a loss, of which a receive of messages tells
            self._post_signal(part)
            return None
        kind, moved = len(_KINDS), 0
        if not isinstance(found, Arrival) and found.nbytes == _SIGNAL.size:
            kind, moved = _SIGNAL.unpack(part.content(_SIGNAL.size))
        self._post_signal(part)
        if kind >= len(_KINDS):
            return None  # a rank of this library sends no such thing
        return Ended(_KINDS[kind], found.source, found.tag, moved)

    def _lost(self, error: ZerohopError) -> Ended | None:
        """Describe the loss of a rank, unless this object was told of it."""
        rank = error.ranks[0] if isinstance(error, PeerLost) and error.ranks else -1
        why = self._messages.losses.get(rank)
        if why is not None:
            if self._told.get(rank) is why:
                return None
            self._told[rank] = why
        return Ended("am", rank, 0, 0, error=error)


class _Posted(GroupProbe):
    """Represents a receive of an Inbox, of which nobody else knows: a loss ends all of them, and is told once."""

    __slots__ = ()

    @staticmethod
    def _dropped(*_: object) -> None:
        """Report nothing."""


class _Part(NamedTuple):
    """Names a part of memory of the host, which can be read whether or not the Context is closed."""

    view: Memory | View
    bytes: memoryview

    def content(self, nbytes: int) -> bytearray:
        """Return a copy of the first bytes."""
        return bytearray(self.bytes[:nbytes])


def _parts(memory: bytearray, nbytes: int, view_of: Callable[[bytearray], Memory | View]) -> list[_Part]:
    whole, octets = view_of(memory), memoryview(memory)
    ranges = [slice(at, at + nbytes) for at in range(0, len(memory), nbytes)]
    return [_Part(whole[each], octets[each]) for each in ranges]


def _nbytes_of(memory: Any) -> int:
    """Return the length of memory; raise TypeError if it has none."""
    nbytes = len(memory) if isinstance(memory, bytearray) else getattr(memory, "nbytes", None)
    if not isinstance(nbytes, int):
        raise TypeError(f"packet gives memory with nbytes, such as a uint8 array, not {type(memory).__name__}")
    return nbytes


def _checked(packet: Any) -> Any:
    """Return a packet; raise TypeError or ValueError if it is none, or its slices are not bytes."""
    if _nbytes_of(packet) == 0 or _nbytes_of(packet[:1]) != 1:
        raise ValueError(
            "packet gives memory that is sliced by bytes, and has some: a flat array of uint8, not another"
        )
    return packet


def _received(arrival: Arrival, target: Any, why: Exception | None, operation: Operation[Message]) -> Ended:
    try:
        operation.result(0)
    except ZerohopError as error:
        why = why or error
    nbytes = arrival.nbytes if why is None else 0
    return Ended("am", arrival.source, arrival.tag, nbytes, target, error=why, header=arrival.header)
