"""Declares Active: active messages, and one-sided transfers that tell completion objects of other ranks."""

from __future__ import annotations

import functools
import math
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import as_int, check_int
from zerohop.core.face import RemoteBuffer
from zerohop.group.channel import Channel, Use
from zerohop.group.completion import Completion
from zerohop.group.inbox import Inbox, signal_of
from zerohop.group.messages import MOST_TAG
from zerohop.group.messaging import Messaging

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Operation
    from zerohop.group.channel import Team
    from zerohop.group.members import Members
    from zerohop.group.messages import Arrival

_MOST_OBJECTS: Final = 1 << 31
_DEPTH: Final = 8
_MOST_TARGETS: Final = 1024


class Active(Messaging):
    """Sends active messages, and puts and gets, that tell a completion object of the other rank.

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
        """Let nobody tell the object of a number any more: what is sent to it fails with PeerLost at the sender.

        Raises:
            ValueError: there is no such object.
        """
        with self._registering:
            found = self._inboxes.pop(number, None)
            if found is None:
                raise ValueError(f"no completion object is registered as {number}")
            inbox, channels = found
            self._members.detach(channels)
            self._channels = [each for each in self._channels if each not in channels]
        inbox.close()

    def am(
        self, source: Local, rank: int, target: int, *, tag: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Send an active message to a completion object of a rank; value: bytes sent.

        The object is told an ``Ended`` with the bytes, the tag, and this rank. Messages of one rank to one object
        arrive in order; the object is told of a short one before a longer one that was sent earlier.

        Args:
            source: as of ``send``.
            rank: the number of the receiver, which may be this rank.
            target: the number that ``register`` gave there.
            tag: an int of 32 bits, for the receiver.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as of ``send``.
        """
        rank, tag = self._checked(rank, tag)
        return self._send(self._target(Use.ACTIVE, target), source, rank, tag, timeout)

    def put(
        self,
        source: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Write to memory of a rank; value: bytes written.

        Args:
            source: a Memory, a View, or any object that ``Context.register`` takes.
            rank: the owner of the memory.
            remote: what the owner's ``Memory.share`` gave.
            offset: where to write in it, in bytes.
            target: the number of a completion object of the owner, which is told when the bytes are visible there.
            tag: an int of 32 bits, for that object.
            timeout: seconds; None: the Group's.

        Raises:
            TypeError, ValueError, Closed: at once. From the Operation: as of ``Context.write``.
        """
        view = self._view(source)
        there = range_of(remote, offset, view.nbytes)
        post = functools.partial(self.context.write, view, there)
        return self._transfer("put", rank, remote, post, view, target, tag, timeout)

    def get(
        self,
        into: Local,
        rank: int,
        remote: RemoteBuffer,
        *,
        offset: int = 0,
        target: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Operation[int]:
        """Read memory of a rank; value: bytes read. Arguments and errors are those of ``put``.

        A completion object of the owner is told when its memory has been read, and may be changed.
        """
        view = self._view(into)
        there = range_of(remote, offset, view.nbytes)
        post = functools.partial(self.context.read, there, view)
        return self._transfer("get", rank, remote, post, view, target, tag, timeout)

    def fetch_add(
        self, remote: RemoteBuffer, value: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Add to 8 bytes of a rank's memory, as ``Context.fetch_add``; value: the number that was there."""
        self._check()
        return self.context.fetch_add(remote, value, offset=offset, timeout=self._timeout_of(timeout))

    def compare_swap(
        self, remote: RemoteBuffer, compare: int, swap: int, *, offset: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Change 8 bytes of a rank's memory, as ``Context.compare_swap``; value: the number that was there."""
        self._check()
        return self.context.compare_swap(remote, compare, swap, offset=offset, timeout=self._timeout_of(timeout))

    def _transfer(
        self,
        kind: str,
        rank: int,
        remote: RemoteBuffer,
        post: Callable[..., Operation[int]],
        view: Any,
        target: int | None,
        tag: int,
        timeout: float | None,
    ) -> Operation[int]:
        rank, tag = self._checked(rank, tag)
        self._check()
        connected = self._check_owner(rank, remote)
        if target is None and connected:
            return post(timeout=self._timeout_of(timeout))
        channel = None if target is None else self._target(Use.SIGNALS, target)
        deadline_ns = self._deadline(timeout)

        async def work() -> int:
            connection = await self.connect(rank, timeout=left_s(deadline_ns))
            self._check_owner(rank, remote)
            moved = await post(timeout=left_s(deadline_ns))
            if channel is None:
                return moved
            if kind == "put":
                await connection.flush(timeout=left_s(deadline_ns))
            await self._send(channel, signal_of(kind, moved), rank, tag, left_s(deadline_ns))
            return moved

        operation = self._defer(kind, deadline_ns, work, nbytes=view.nbytes, keep=view)
        self._operations.note(operation)
        return operation

    def _check_owner(self, rank: int, remote: RemoteBuffer) -> bool:
        """Raise ValueError if memory is not of a rank; return False if the rank was not reached yet."""
        connection = self._members.known(self._team.ranks[rank])
        if connection is not None and connection.peer != remote.owner:
            raise ValueError(f"this memory is not of rank {rank}: pass the rank whose Memory.share() gave the handle")
        return connection is not None

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

    def _channel(self, use: Use, number: int) -> Channel:
        return Channel(self._team, use, self._members.secret_of, number)


def left_s(deadline_ns: int) -> float:
    """Return the seconds until a deadline on the monotonic clock; 0 stands for none."""
    return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9) if deadline_ns else math.inf


def range_of(remote: RemoteBuffer, offset: int, nbytes: int) -> RemoteBuffer:
    """Return a part of remote memory; raise TypeError or ValueError if it is none, or too short."""
    if not isinstance(remote, RemoteBuffer):
        raise TypeError(f"remote is what Memory.share() gives, a RemoteBuffer, not {type(remote).__name__}")
    offset = check_int("offset", as_int("offset", offset), 0, remote.nbytes)
    if nbytes > remote.nbytes - offset:
        raise ValueError(f"{nbytes} bytes from {offset} on do not fit into remote memory of {remote.nbytes}")
    return remote[offset : offset + nbytes]
