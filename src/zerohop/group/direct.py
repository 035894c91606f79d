"""Moves long messages of a GPU's memory straight to the receiver's memory: the receiver reads them where they are.

The sender posts such a message as any other one, and names its memory in a header. A receiver that does not read it
lets the lane carry the bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from zerohop._native import DIRECT_BYTES
from zerohop.core.face import HOST, Memory, RemoteBuffer, View
from zerohop.errors import ZerohopError
from zerohop.group.messages import Arrival, Message, end_quietly

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
    first: Operation[Message | Arrival],
    found: Found,
    view: Memory | View,
    read: Callable[[RemoteBuffer, Memory | View], Operation[int]],
    is_connected: Callable[[str], bool],
    operation: Any,
) -> Message:
    """Receive a message whose receive was posted, and read it if its sender offers that.

    Args:
        first: the receive, which leaves messages that can be read.
        found: what it finds.
        view: the memory that it is for.
        read: reads remote memory.
        is_connected: tells whether there is a Connection to the Context of an id. Memory of no other one is read.
        operation: the Operation of the whole, which is told what moves its bytes.
    """
    arrived = await _end_of(first, operation)
    if isinstance(arrived, Message):
        operation.moved(arrived.nbytes)
        return arrived
    remote = _offered(found.offer)
    if remote is not None and remote.nbytes == arrived.nbytes <= view.nbytes and is_connected(remote.owner):
        reading = read(remote, view[: arrived.nbytes])
        try:
            await _end_of(reading, operation)
        except ZerohopError:
            if reading.memory_in_use:  # what the lane brings would be overwritten
                raise
        else:
            operation.moved(arrived.nbytes)
            # Fails if the sender has given the message up: it may have changed its memory since.
            message: Message = await _end_of(found.claim(arrived.source, None, None), operation)
            return message
    message = await _end_of(arrived.recv(view), operation)
    operation.moved(message.nbytes)
    return message


async def _end_of(part: Operation[Any], whole: Any) -> Any:
    """Wait for an operation that is a part of another one; return its value."""
    whole.consists_of(part)
    try:
        return await part
    except asyncio.CancelledError:
        end_quietly(part)
        raise


def _offered(header: bytes) -> RemoteBuffer | None:
    """Return the memory that a header names; None if it names none."""
    try:
        return RemoteBuffer.from_bytes(header)
    except ZerohopError:
        return None
