"""Makes the transfers of a Context: write, read, pages, atomics, notify, flush. This is the hot path."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError
from zerohop.core.control import address
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.core.runtime.deferred import all_ended, defer, defer_post, deferred_to, first_use
from zerohop.core.runtime.native_operation import NATIVE_VALUE, NBYTES
from zerohop.core.runtime.operation import Failed, Operation
from zerohop.core.transfers.connection import Connection
from zerohop.core.transfers.message_lane import NOTIFIED, PLAIN, notify_value
from zerohop.core.transfers.posting import find_route, launch, launch_after, posted_on, ready_route
from zerohop.errors import from_native

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from zerohop._native import Group, Op
    from zerohop.core.context import Context
    from zerohop.core.lanes.paths import Explanation
    from zerohop.core.lanes.routes import Route
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.op_group import Scope

    # What may stand wherever a View may: it is registered through the cache.
    Local: TypeAlias = Memory | View | Any
    Pages: TypeAlias = np.ndarray[Any, Any] | Sequence[int]

_WRITE: Final = 0
_READ: Final = 1
_FETCH_ADD: Final = 0
_COMPARE_SWAP: Final = 1
_NO_NOTIFY: Final = -1
_MAX_NOTIFY: Final = (1 << 32) - 1
_WORD: Final = 8
_WORD_MASK: Final = (1 << 64) - 1
# Native lengths have fewer bits than this one.
_TOO_LONG: Final = 1 << 63
_BOUNDS: Final = (5, 1)  # ACCESS_DENIED, BOUNDS
_INT64: Final = np.dtype(np.int64)


def write(
    context: Context,
    src: Local,
    dst: RemoteBuffer,
    *,
    notify: int | None = None,
    timeout: float | None = None,
    stream: Stream | None = None,
) -> Operation[int]:
    """Do Context.write where its native part (native/bind/transfers.cpp) posted nothing."""
    return transfer(context, "write", src, dst, notify, timeout, stream=stream)


def read(
    context: Context, src: RemoteBuffer, into: Local, *, timeout: float | None = None, stream: Stream | None = None
) -> Operation[int]:
    """Do Context.read where its native part posted nothing."""
    return transfer(context, "read", into, src, None, timeout, stream=stream)


def transfer(
    context: Context,
    kind: str,
    local: Local,
    remote: RemoteBuffer,
    notify: int | None,
    timeout: float | None,
    *,
    stream: Stream | None = None,
    nowait: bool = False,
    scope: Scope | None = None,
) -> Operation[int]:
    """Write or read one range, with all checks. ``scope``: what it is part of; there ``remote`` may be longer."""
    view = context._view(local)
    check_remote(remote)
    nbytes = view.nbytes
    if scope is not None and remote.nbytes > nbytes:
        remote = remote[:nbytes]
    if nbytes != remote.nbytes:
        raise ValueError(f"{kind}: {nbytes} bytes here and {remote.nbytes} there; slice one of them")
    code = _WRITE if kind == "write" else _READ
    if code == _READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    number, group = announced(notify, remote, scope)
    deadline = context._deadline(timeout)
    engine, here, there = context._engine, view._offset, remote._offset

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post(route, code, here, there, nbytes, number, deadline, nowait, after, group)

    need = PLAIN if number == _NO_NOTIFY else NOTIFIED
    if stream is not None:
        operation = launch_after(context, kind, view, remote, nbytes, deadline, post, stream, need)
    else:
        operation = launch(context, kind, view, remote, nbytes, NBYTES, deadline, post, nowait=nowait, need=need)
    if scope is not None:
        scope.note(operation)
    return operation


def transfer_pages(
    context: Context,
    kind: str,
    local: Local,
    remote: RemoteBuffer,
    local_pages: Pages,
    remote_pages: Pages,
    page_bytes: int,
    notify: int | None,
    timeout: float | None,
    *,
    stream: Stream | None = None,
    nowait: bool = False,
) -> Operation[int]:
    """Write or read a list of pages."""
    view = context._view(local)
    check_remote(remote)
    page_bytes = index(page_bytes)
    if not 0 < page_bytes < _TOO_LONG:
        raise ValueError(f"page_bytes must be positive and less than 2**63, not {page_bytes}")
    here, there = _index_array(local_pages), _index_array(remote_pages)
    if here.size != there.size:
        raise ValueError(f"{kind}: {here.size} pages here and {there.size} there")
    code = _WRITE if kind == "write_pages" else _READ
    if code == _READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    nbytes = here.size * page_bytes
    # The native call checks those here; there, it knows of the whole share only.
    if remote.nbytes != remote._share.nbytes and _outside(there, page_bytes, remote.nbytes):
        return Failed(context, kind, None, nbytes, from_native(*_BOUNDS, operation=kind, peer=remote.owner))
    number = _NO_NOTIFY if notify is None else notify_value(notify)
    deadline = context._deadline(timeout)
    engine, offset, remote_offset, local_nbytes = context._engine, view._offset, remote._offset, view.nbytes
    route = ready_route(context, view, remote) if not context._closed else None
    if route is None:
        # It will be posted later, when a wrong number could no longer be told here, and the arrays may have changed.
        if _outside(here, page_bytes, view.nbytes):
            raise ValueError(f"{kind}: a page number is negative, or its page not within the {view.nbytes} bytes here")
        here, there = here.copy(), there.copy()

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post_pages(
            route, code, here, there, page_bytes, number, deadline, nowait, offset, remote_offset, local_nbytes, after
        )

    need = PLAIN if number == _NO_NOTIFY else NOTIFIED
    if stream is not None:
        return launch_after(context, kind, view, remote, nbytes, deadline, post, stream, need)
    if route is not None:
        # What launch() begins with, for what has been found already; whatever does not go well is its to deal with.
        try:
            return posted_on(context, kind, view, route, nbytes, NBYTES, post(route.id, True))
        except NativeError:
            pass
    return launch(context, kind, view, remote, nbytes, NBYTES, deadline, post, nowait=nowait, need=need)


def atomic(
    context: Context,
    kind: str,
    remote: RemoteBuffer,
    operand: int,
    compare: int,
    offset: int,
    timeout: float | None,
    *,
    nowait: bool = False,
) -> Operation[int]:
    """Do fetch_add or compare_swap on 8 bytes."""
    check_remote(remote)
    offset = index(offset)
    if not 0 <= offset <= remote.nbytes - _WORD:
        raise ValueError(f"{kind}: 8 bytes at offset {offset} do not lie within {remote.nbytes}")
    where = remote._offset + offset
    if where % _WORD:
        raise ValueError(f"{kind}: the word at offset {where} of the shared memory is not aligned to 8 bytes")
    code = _FETCH_ADD if kind == "fetch_add" else _COMPARE_SWAP
    operand, compare = _word(operand), _word(compare)
    deadline = context._deadline(timeout)
    engine = context._engine

    def post(route: int, nowait: bool) -> tuple[int, int] | Op:
        return engine.post_atomic(route, code, where, operand, compare, deadline, nowait)

    return launch(context, kind, context._scratch_memory(), remote, _WORD, NATIVE_VALUE, deadline, post, nowait=nowait)


def notify_peer(
    context: Context, target: Connection | RemoteBuffer, value: int, timeout: float | None, *, nowait: bool = False
) -> Operation[int]:
    """Send a notification without data."""
    number = notify_value(value)
    if isinstance(target, Connection):
        if target._context is not context:
            raise ValueError("the Connection belongs to another Context")
        connection: Connection | None = target
    else:
        check_remote(target)
        connection = context._peers.connected.get(target.owner)
    if connection is not None:
        return (connection.notify_nowait if nowait else connection.notify)(number, timeout=timeout)
    assert isinstance(target, RemoteBuffer)
    context._check_open()
    deadline = context._deadline(timeout)
    where = address.parse(target.url)
    if nowait:
        return first_use(context, "notify", 0, target.owner, lambda: context._peers.connect(where))

    async def work() -> int:
        connected = await context._peers.connect(where)
        post = connected._notification(number, deadline)
        return await defer_post(context, post, deadline, 0, NBYTES, connected._line(NOTIFIED), connected._until_lane)

    return defer(context, "notify", 0, deadline, work, None, peer=target.owner)


def flush(context: Context, connection: Connection | None, timeout: float | None) -> Operation[int]:
    """Flush one Connection or all."""
    context._check_open()
    if connection is not None:
        if not isinstance(connection, Connection):
            raise TypeError(f"flush takes a Connection, or nothing for all, not {type(connection).__name__}")
        if connection._context is not context:
            raise ValueError("the Connection belongs to another Context")
        return connection.flush(timeout=timeout)
    before = deferred_to(context, "")
    deadline = context._deadline(timeout)

    async def work() -> int:
        await all_ended(before)
        for each in list(context._peers.connected.values()):
            if each.alive:
                await each._flush_lanes(deadline)
        return 0

    return defer(context, "flush", 0, deadline, work, None)


def explain(context: Context, local: Local, remote: RemoteBuffer, timeout: float | None) -> Explanation:
    """Explain the path of a pair of memories; connect first if needed."""
    view = context._view(local)
    check_remote(remote)
    context._check_open()
    route = ready_route(context, view, remote)
    if route is None:

        async def work() -> Route:
            return await find_route(context, view, remote)

        found: Operation[Route] = defer(context, "explain", 0, context._deadline(timeout), work, view)
        route = found.result()
    return route.explanation


def check_remote(remote: object) -> None:
    """Raise TypeError unless the argument is a handle."""
    if not isinstance(remote, RemoteBuffer):
        raise TypeError(
            f"the remote side is a RemoteBuffer, not {type(remote).__name__}; "
            f"bytes become one with RemoteBuffer.from_bytes"
        )


def announced(notify: int | None, remote: RemoteBuffer, scope: Scope | None) -> tuple[int, Group | None]:
    """Return a notification's number and the operation group, as the engine takes them."""
    number = _NO_NOTIFY if notify is None else notify_value(notify)
    if scope is None:
        return number, None
    scope.check_owner(remote)
    return number if notify is None else scope.announce(number), scope.group


def _word(value: int) -> int:
    """Return the 64 bits of a number, signed or not."""
    number = index(value)
    if not -(1 << 63) <= number <= _WORD_MASK:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number & _WORD_MASK


def _index_array(pages: Pages) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Convert page numbers to the form that the native call takes."""
    if type(pages) is np.ndarray and pages.dtype is _INT64 and pages.ndim == 1 and pages.flags.c_contiguous:
        return pages
    array = np.asarray(pages)
    if array.ndim != 1:
        raise ValueError(f"page numbers are a one-dimensional array, not one of shape {array.shape}")
    if array.dtype.kind not in "iu" and array.size:
        if all(isinstance(page, int) for page in array.flat):
            raise ValueError("a page number does not fit into 64 bits")
        raise TypeError(f"page numbers are integers, not {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _outside(pages: np.ndarray[Any, np.dtype[np.int64]], page_bytes: int, nbytes: int) -> bool:
    """Tell whether a page does not lie within a range of ``nbytes``."""
    # Negative numbers are very large ones without their sign.
    return bool(pages.size) and int(pages.view(np.uint64).max()) >= nbytes // page_bytes
