"""Declares Inbox, which receives what is sent to one completion object: active messages, and the ends of transfers."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, Final

from zerohop.errors import Closed, PeerLost, ZerohopError
from zerohop.group.completions import Ended
from zerohop.group.messages import Arrival, Found, GroupProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Context, Memory, Operation, View
    from zerohop.group.channel import Channel
    from zerohop.group.completions import Completion
    from zerohop.group.messages import Message

# The message that tells of a transfer: its kind, and its bytes.
_SIGNAL: Final = struct.Struct("<BxxxxxxxQ")
_KINDS: Final = ("put", "get")
PACKET_BYTES: Final = 8192


def signal_of(kind: str, nbytes: int) -> bytes:
    """Return the message that tells of a transfer's end."""
    return _SIGNAL.pack(_KINDS.index(kind), nbytes)


class Inbox:
    """Keeps receives posted for the active messages and signals to a completion object, and tells it of each."""

    def __init__(
        self,
        completion: Completion,
        context: Context,
        messages: Channel,
        signals: Channel,
        deadline: Callable[[float | None], int],
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
        self._closed = False
        # The losses that were told: each receive hears of a loss, and the object is to hear of it once.
        self._told: dict[int, ZerohopError] = {}
        # Registered once. A message is copied out of its packet, which is used again.
        own = allocate is None and packet is None
        packets = _parts(context.alloc(depth * PACKET_BYTES), PACKET_BYTES) if own else [None] * depth
        for each in packets:
            self._post_message(each)
        for each in _parts(context.alloc(depth * _SIGNAL.size), _SIGNAL.size):
            self._post_signal(each)

    def close(self) -> None:
        """Receive no more."""
        self._closed = True
        for channel in (self._messages, self._signals):
            channel.mailbox.close()
        self._completion.progress()  # takes the ends of all receives

    def _post(self, channel: Channel, into: Any, told: Callable[[Operation[Any]], Ended | None]) -> None:
        if self._closed:
            return
        self._finders += 1
        room = -1 if into is None else len(into) if isinstance(into, bytearray) else into.nbytes
        found = Found(channel.mailbox, channel.losses, self._finders, self._deadline)
        operation: Any = GroupProbe(None, channel.losses, found, room)
        posted = channel.mailbox.receive(operation, into, None, None, 0, found.number)
        self._completion.watch(posted, told)

    def _post_message(self, own: View | None) -> None:
        packet = own if self._packet is None else self._packet()
        self._post(self._messages, packet, functools.partial(self._has_message, own, packet))

    def _post_signal(self, into: View) -> None:
        self._post(self._signals, into, functools.partial(self._has_signal, into))

    def _has_message(self, own: View | None, packet: Any, operation: Operation[Message | Arrival]) -> Ended | None:
        """Describe the end of a receive of active messages, and post the next one."""
        try:
            found = operation.result(0)
        except Closed:
            return None
        except ZerohopError as error:
            self._post_message(own)
            return self._lost(error)
        if isinstance(found, Arrival):
            self._post_message(own)
            if self._closed:
                return None  # the object is told of nothing more, and nobody has asked for the memory
            target = None if self._allocate is None else self._allocate(found)
            if target is None:
                target = bytearray(found.nbytes)
            self._completion.watch(found.recv(target), functools.partial(_received, found, target))
            return None
        data = packet[: found.nbytes] if own is None else bytearray(own.read_bytes(0, found.nbytes))
        self._post_message(own)
        return Ended("am", found.source, found.tag, found.nbytes, data)

    def _has_signal(self, into: View, operation: Operation[Message | Arrival]) -> Ended | None:
        """Describe the transfer that a signal tells of, and post the next receive."""
        try:
            found = operation.result(0)
        except Closed:
            return None
        except ZerohopError:  # a loss, of which a receive of messages tells
            self._post_signal(into)
            return None
        kind, moved = len(_KINDS), 0
        if not isinstance(found, Arrival) and found.nbytes == _SIGNAL.size:
            kind, moved = _SIGNAL.unpack(into.read_bytes(0, _SIGNAL.size))
        self._post_signal(into)
        if kind >= len(_KINDS):
            return None  # a rank of this library sends no such thing
        return Ended(_KINDS[kind], found.source, found.tag, moved)

    def _lost(self, error: ZerohopError) -> Ended | None:
        """Describe the loss of a rank, unless this object was told of it."""
        for rank, why in self._messages.losses.items():
            if isinstance(error, PeerLost) and error.reason.startswith(f"rank {rank}:"):
                if self._told.get(rank) is why:
                    return None
                self._told[rank] = why
                return Ended("am", rank, 0, 0, error=error)
        return Ended("am", -1, 0, 0, error=error)


def _parts(memory: Memory, nbytes: int) -> list[View]:
    return [memory[at : at + nbytes] for at in range(0, memory.nbytes, nbytes)]


def _received(arrival: Arrival, target: Any, operation: Operation[Message]) -> Ended:
    try:
        operation.result(0)
    except ZerohopError as error:
        return Ended("am", arrival.source, arrival.tag, 0, target, error=error)
    return Ended("am", arrival.source, arrival.tag, arrival.nbytes, target)
