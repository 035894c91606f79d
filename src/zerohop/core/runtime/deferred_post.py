"""Posts on the control thread, for deferred operations: once there is a lane, and room in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from zerohop._native import NativeError, Reason, Status
from zerohop.core.runtime.native_operation import BYTES_DONE, NATIVE_VALUE, NBYTES
from zerohop.errors import LANE_RESET, from_native

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any

    from zerohop._native import Op
    from zerohop.core.runtime.runtime import Runtime

    # Posts natively, given `nowait`. Returns nanoseconds, or (nanoseconds, value), if it ended at once; else the Op.
    Post = Callable[[bool], int | Op | tuple[int, int]]

# Seconds between attempts to post on a full lane.
_RETRY_S: Final = 0.0005
_MAX_RETRY_S: Final = 0.01
# Number of lanes that may break, one after the other, while an operation waits to be posted; after that it fails.
_MAX_RESETS: Final = 8


def lane_was_reset(error: Exception) -> bool:
    """Tell whether a native call posted nothing because its lane is down or is being replaced."""
    return isinstance(error, NativeError) and error.args[1] == LANE_RESET


async def defer_post(
    core: Runtime,
    post: Post,
    deadline_ns: int,
    nbytes: int,
    value_from: int,
    line: asyncio.Lock | None = None,
    until_lane: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """Post on the control thread as soon as the lane has room, wait for the end, and return the value.

    Args:
        core: the core of the Context.
        post: makes the native call; its argument is ``nowait``.
        deadline_ns: on the monotonic clock; 0: none.
        nbytes: bytes that the operation moves.
        value_from: NBYTES, NATIVE_VALUE or BYTES_DONE.
        line: lock of the operations that wait for the same kind of room; they are posted in the order of their calls.
        until_lane: waits for a lane; called again if the lane breaks before anything was posted. None: a broken lane
            is an error.
    """
    import asyncio

    if line is None:
        posted = await _post_when_room(post, deadline_ns, until_lane)
    else:
        async with line:
            posted = await _post_when_room(post, deadline_ns, until_lane)
    if isinstance(posted, (int, tuple)):
        return value_of(posted, nbytes, value_from)
    try:
        await core.loops.running().wait(posted.arm, posted.disarm)
    except asyncio.CancelledError:
        posted.cancel()
        raise
    if posted.status == Status.CANCELLED:
        raise asyncio.CancelledError
    return value_of(posted, nbytes, value_from)


def value_of(posted: int | Op | tuple[int, int], nbytes: int, value_from: int) -> int:
    """Return the value of a post that has ended; raise the error with which it did."""
    if isinstance(posted, int):
        return nbytes
    if isinstance(posted, tuple):
        return posted[1]
    if posted.status == Status.OK:
        return {NBYTES: nbytes, NATIVE_VALUE: posted.value, BYTES_DONE: posted.bytes_done}[value_from]
    raise from_native(posted.status.value, posted.reason.value, bytes_done=posted.bytes_done)


async def _post_when_room(
    post: Post, deadline_ns: int, until_lane: Callable[[], Coroutine[Any, Any, None]] | None
) -> int | Op | tuple[int, int]:
    import asyncio

    pause = _RETRY_S
    resets = 0
    while True:
        if until_lane is not None:
            await until_lane()
        # The deadline may have passed before the first attempt, because connecting takes time, too.
        if deadline_ns and time.monotonic_ns() > deadline_ns:
            raise NativeError(Status.DEADLINE.value, Reason.NONE.value, "nothing was posted")
        try:
            return post(True)
        except NativeError as error:
            if until_lane is not None and lane_was_reset(error) and resets < _MAX_RESETS:
                resets += 1
            elif error.args[0] != Status.WOULD_BLOCK.value:
                raise
        await asyncio.sleep(pause)
        pause = min(_MAX_RETRY_S, pause * 2)
