"""Moves long messages of a GPU's memory straight to the receiver's memory: the receiver reads them where they are.

The sender posts such a message as any other one, and names its memory in a header. A receiver that does not read it
lets the lane carry the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop._native import DIRECT_BYTES
from zerohop.core.face import HOST, Memory, RemoteBuffer, View, is_connected, transfer
from zerohop.errors import DeadlineExceeded, ZerohopError
from zerohop.group.deadlines import left_s
from zerohop.group.messages import Arrival, Message, end_quietly
from zerohop.group.of_rank import name_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Operation
    from zerohop.group.messages import Found

_MOST_HEADER: Final = 256


def is_direct(view: Memory | View) -> bool:
    """Tell whether messages of this memory, or into it, may move so."""
    return view.nbytes >= DIRECT_BYTES and view.device != HOST


def offer(lend: Callable[..., tuple[RemoteBuffer, int]], source: Local, view: Memory | View) -> bytes | None:
    """Return the header by which a receiver can read a message; None: the message is one for the lane.

    Args:
        lend: makes a handle (``Face._lend``).
        source: what the caller has sent.
        view: its memory, which lives until the message has been received.
    """
    if not is_direct(view):
        return None
    try:
        handle, start = lend(view, "r", once=not isinstance(source, (Memory, View)))
    except ValueError:  # nobody may read it
        return None
    header = bytes(handle[start : start + view.nbytes])
    return header if len(header) <= _MOST_HEADER else None


async def receive(
    core: Any,
    first: Operation[Message | Arrival],
    found: Found,
    view: Memory | View,
    deadline_ns: int,
    operation: Any,
) -> Message:
    """Receive a message whose receive was posted, and read it if its sender offers that.

    Args:
        core: the core of the Context.
        first: the receive, which leaves messages that can be read.
        found: what it finds.
        view: the memory that it is for.
        deadline_ns: of the receive, on the monotonic clock; 0: none.
        operation: the Operation of the whole, which posts each of its parts.
    """
    arrived: Message | Arrival = await _end_of(first)
    if isinstance(arrived, Arrival):
        try:
            arrived = await _take(core, arrived, found, view, deadline_ns, operation)
        except ZerohopError as error:
            name_rank(arrived.source, error)
            raise
    operation.nbytes = arrived.nbytes
    return arrived


async def _take(
    core: Any, arrived: Arrival, found: Found, view: Memory | View, deadline_ns: int, operation: Any
) -> Message:
    """Read a message, or let the lane carry it."""
    remote = _offered(found.offer)
    message: Message
    if remote is not None and remote.nbytes == arrived.nbytes <= view.nbytes and is_connected(core, remote.owner):
        reading = operation.carry(lambda: read(core, remote, view[: arrived.nbytes], left_s(deadline_ns)))
        try:
            await _end_of(reading)
        except DeadlineExceeded:
            raise
        except ZerohopError:
            if reading.memory_in_use:  # what the lane brings would be overwritten
                raise
        else:
            # Fails if the sender has given the message up: it may have changed its memory since.
            message = await _end_of(operation.carry(lambda: found.claim(arrived.source, None, left_s(deadline_ns))))
            return message
    message = await _end_of(operation.carry(lambda: arrived.recv(view, timeout=left_s(deadline_ns))))
    return message


def read(core: Any, remote: RemoteBuffer, into: Memory | View, timeout: float) -> Operation[int]:
    """Read memory of a rank, as ``Context.read``."""
    return transfer(core, "read", into, remote, None, timeout)


async def _end_of(part: Operation[Any]) -> Any:
    """Wait for a part of a receive; return its value."""
    try:
        return await part
    except BaseException:  # the whole was cancelled, for one
        end_quietly(part)
        raise


def _offered(header: bytes) -> RemoteBuffer | None:
    """Return the memory that a header names; None if it names none."""
    try:
        return RemoteBuffer.from_bytes(header)
    except ZerohopError:
        return None
