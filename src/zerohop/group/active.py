"""Declares Active: active messages, which tell completion objects of other ranks."""

from __future__ import annotations

import functools
import threading
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import as_int, check_int
from zerohop.core.face import on_event_loop
from zerohop.group.channel import Channel, Use
from zerohop.group.completion import Completion
from zerohop.group.deadlines import with_grace
from zerohop.group.inbox import Inbox
from zerohop.group.messages import MOST_TAG, SHORT
from zerohop.group.messaging import named
from zerohop.group.of_rank import of_rank
from zerohop.group.tagged import Tagged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zerohop.core.face import Local, Operation
    from zerohop.group.channel import Team
    from zerohop.group.members import Members
    from zerohop.group.messages import Arrival

_MOST_OBJECTS: Final = 1 << 31
_DEPTH: Final = 8
_MOST_TARGETS: Final = 1024
_MOST_HEADER: Final = 256


class Active(Tagged):
    """Sends active messages, which tell a completion object of the other rank.

    A completion object is named in other ranks by the number that ``register`` gives, a plain int, which is sent any
    way that a program likes. Nobody has to wait until the other has registered it: what comes before is kept.
    """

    def _open(self, members: Members, team: Team) -> None:
        self._object_numbers = count()
        # Reentrant: a destructor that the garbage collector runs within a call closes the group.
        self._registering = threading.RLock()
        self._is_left = False
        self._inboxes: dict[int, tuple[Inbox, tuple[Channel, ...]]] = {}
        self._targets: dict[tuple[Use, int], Channel] = {}
        super()._open(members, team)

    def _close_channels(self) -> None:
        with self._registering:
            self._is_left = True
            inboxes, self._inboxes = self._inboxes, {}
        super()._close_channels()
        for channel in self._targets.copy().values():
            channel.stop()
        for inbox, _ in inboxes.values():
            inbox.close()

    def register(
        self,
        completion: Completion,
        *,
        allocate: Callable[[Arrival], Any] | None = None,
        packet: Callable[[], Any] | None = None,
        depth: int = _DEPTH,
    ) -> int:
        """Let other ranks tell a completion object; return its number, which they name it by.

        Numbers count from 0 in each rank and group, so ranks that register the same objects in the same order need not
        tell each other. Messages of up to 8 KiB are received into packets, longer ones into memory of their length.

        Args:
            completion: the object.
            allocate: called with an Arrival (source, tag, nbytes) before the bytes of each message move, in the thread
                that asks the object; returns the memory for them, of the host or a GPU, or None for a new bytearray.
            packet: makes the memory that messages are received into: anything that ``Context.register`` takes, has
                ``nbytes`` and can be sliced by bytes, such as a uint8 tensor of a GPU. ``Ended.data`` is a slice of it,
                and is the receiver's: the packet is not used again. None: bytearrays of 8 KiB.
            depth: how many messages may arrive between two looks at the object without waiting at the sender.

        Raises:
            TypeError: no completion object.
            ValueError: both ``allocate`` and ``packet``; ``depth`` is less than 1.
            Closed: the Group is closed.
        """
        if not isinstance(completion, Completion):
            raise TypeError(
                "completion is a Counter, a Synchronizer, a CompletionList or a Handler, "
                f"not {type(completion).__name__}"
            )
        if allocate is not None and packet is not None:
            raise ValueError("allocate gives the memory of each message, and packet that of all; pass one of them")
        for name, function in (("allocate", allocate), ("packet", packet)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is a function, not {type(function).__name__}")
        depth = check_int("depth", as_int("depth", depth), 1, 1 << 16)
        self._check()
        completion.check(self.context)
        with self._registering:
            number = next(self._object_numbers)
        channels = self._channel(Use.ACTIVE, number), self._channel(Use.SIGNALS, number)
        for channel in channels:
            channel.open(self._core)
        more: dict[str, Any] = {"allocate": allocate, "packet": packet, "depth": depth}
        try:
            inbox = Inbox(completion, *channels, self._deadline_by, self._view, **more)
        except BaseException:
            for channel in channels:
                channel.mailbox.close()
            raise
        with self._registering:
            is_open = not self._is_left
            if is_open:
                self._channels += channels
                self._inboxes[number] = inbox, channels
        if not is_open:  # since the look above
            inbox.close()
            self._check()
        self._members.attach(channels)
        return number

    def deregister(self, number: int) -> None:
        """Let nobody tell the object of a number any more: a message to it of more than 8 KiB fails at its sender.

        Raises:
            ValueError: there is no such object.
            TypeError: no int.
        """
        number = as_int("number", number)
        with self._registering:
            found = self._inboxes.pop(number, None)
            if found is None:
                raise ValueError(f"no completion object is registered as {number}")
            inbox, channels = found
            self._members.detach(channels)
            self._channels = [each for each in self._channels if each not in channels]
        inbox.close()

    def am(
        self,
        source: Local,
        rank: int,
        target: int,
        *,
        tag: int = 0,
        header: bytes = b"",
        timeout: float | None = None,
    ) -> Operation[int]:
        """Send an active message to a completion object of a rank; value: bytes sent.

        The object is told an ``Ended`` with the bytes, the tag, the header, and this rank. Messages of one rank to one
        object arrive in order; the object is told of a short one before a longer one that was sent earlier.

        Args:
            source: as of ``send``.
            rank: the number of the receiver, which may be this rank.
            target: the number that ``register`` gave there.
            tag: an int of 32 bits, for the receiver.
            header: up to 256 bytes, which the receiver has before it names memory for the message.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as of ``send``.
        """
        channel = self._targets.get((Use.ACTIVE, target)) if type(target) is int and not header else None
        operation = None if channel is None else channel.post_send(source, rank, tag, timeout)
        if operation is not None:
            return of_rank(operation, rank, "am")
        rank, tag = self._checked(rank, tag)
        channel = self._target(Use.ACTIVE, target)
        return of_rank(self._send(channel, source, rank, tag, timeout, header=header_of(header)), rank, "am")

    def am_many(
        self, sources: Sequence[Local], rank: int, target: int, *, tag: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Send active messages to one completion object of a rank, in their order; value: how many.

        A message of up to 8 KiB then costs a fraction of a call of ``am``. Where there is no room the call waits; on an
        event loop its Operation does. If one fails, those after it may have been sent.

        Args:
            sources: what to send in each, as of ``send``; ``bytes`` of up to 8 KiB need not be registered.
            rank: the number of the receiver, which may be this rank.
            target: the number that ``register`` gave there.
            tag: an int of 32 bits, for the receiver, the same for all.
            timeout: seconds for each; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once, and nothing was sent. From the Operation: as of ``send``.
        """
        rank, tag = self._checked(rank, tag)
        channel = self._target(Use.ACTIVE, target)
        if isinstance(sources, (bytes, bytearray, memoryview, str)) or hasattr(sources, "__array_interface__"):
            raise TypeError(f"sources is a list of messages, not {type(sources).__name__}. Fix: am_many([x], ...)")
        made = tuple(sources)
        self._check()
        sent = channel.post_sends(made, rank, tag, timeout, not on_event_loop(), False)
        if sent == len(made):
            return self._finished("am", sent)
        rest = tuple(each if type(each) is bytes and len(each) <= SHORT else self._view(each) for each in made[sent:])
        members, deadline_ns = self._members, self._deadline(timeout)
        end = members.queue(self._team.ranks[rank])
        send = functools.partial(members.send_many_queued, channel, rest, rank, tag, deadline_ns, end)

        async def work(operation: Any) -> int:
            await named(self._team, rank, send, operation)
            return len(made)

        try:
            operation = self._defer("am", with_grace(deadline_ns), work, keep=rest, wants_operation=True, at_end=end)
        except BaseException:
            end()
            raise
        self._operations.note(operation)
        return of_rank(operation, rank, "am")

    def _checked(self, rank: int, tag: int) -> tuple[int, int]:
        rank = check_int("rank", as_int("rank", rank), 0, self.size - 1)
        return rank, check_int("tag", as_int("tag", tag), 0, MOST_TAG)

    def _target(self, use: Use, number: int) -> Channel:
        """Return the channel to a completion object of other ranks."""
        number = check_int("target", as_int("target", number), 0, _MOST_OBJECTS - 1)
        channel = self._targets.get((use, number))
        if channel is None:
            if len(self._targets) >= _MOST_TARGETS:
                self._targets.clear()  # objects come and go; the channels to those in use are made again
            channel = self._targets[use, number] = self._channel(use, number)
        return channel


def header_of(header: bytes) -> bytes | None:
    """Return a header of an active message as bytes, None if it is empty.

    Raises:
        TypeError: no bytes.
        ValueError: too long.
    """
    try:
        made = bytes(memoryview(header))
    except TypeError:
        raise TypeError(f"header is bytes, not {type(header).__name__}") from None
    if len(made) > _MOST_HEADER:
        raise ValueError(f"a header has {_MOST_HEADER} bytes at most, not {len(made)}; put the rest into the message")
    return made or None
