"""Makes the transfers of a Context: write, read, pages, atomics, notify, flush. This is the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError
from zerohop.config.checks import as_int
from zerohop.core.control import address
from zerohop.core.memory.access import offset_of
from zerohop.core.memory.layouts import is_masked
from zerohop.core.memory.register import register, view_of
from zerohop.core.memory.remote_buffer import RemoteBuffer, share_of, start_of
from zerohop.core.memory.torch_tensors import is_tensor, way_to_integers
from zerohop.core.runtime.deferred import all_ended, defer, unfinished
from zerohop.core.runtime.deferred_post import defer_post
from zerohop.core.runtime.first_use import first_use
from zerohop.core.runtime.native_operation import NATIVE_VALUE, NBYTES, posted_operation
from zerohop.core.runtime.operation import Failed, Operation
from zerohop.core.transfers.connection import Connection, link_of
from zerohop.core.transfers.message_lane import (
    NOTIFIED,
    PLAIN,
    flush_lanes,
    message_bytes,
    notify_post,
    notify_value,
    post_message,
    until_lane,
)
from zerohop.core.transfers.posting import find_route, launch, launch_after, ready_route
from zerohop.errors import ZerohopError, from_native
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from zerohop._native import Group, Op
    from zerohop.core.lanes.link import Route
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.register import Local
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.runtime.explanation import Explanation
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.op_group import OperationGroup

    Pages: TypeAlias = np.ndarray[Any, Any] | Sequence[int]

WRITE: Final = 0
READ: Final = 1
_FETCH_ADD: Final = 0
_COMPARE_SWAP: Final = 1
NO_NOTIFY: Final = -1
_WORD: Final = 8
_WORD_MASK: Final = (1 << 64) - 1
# Native lengths are less than this.
_TOO_LONG: Final = 1 << 63
BOUNDS: Final = (5, 1)  # ACCESS_DENIED, BOUNDS
_INT64: Final = np.dtype(np.int64)


def transfer(
    core: Core,
    kind: str,
    local: Local,
    remote: RemoteBuffer,
    notify: int | None,
    timeout: float | None,
    *,
    message: bytes | None = None,
    stream: Stream | None = None,
    nowait: bool = False,
    group: OperationGroup | None = None,
) -> Operation[int]:
    """Write or read one range, with all checks. In a ``group`` the remote range may be longer than the local one."""
    view = view_of(core, local)
    check_remote(remote)
    nbytes = view.nbytes
    if group is not None and remote.nbytes > nbytes:
        remote = remote[:nbytes]
    if nbytes != remote.nbytes:
        raise ValueError(f"{kind}: {nbytes} bytes here and {remote.nbytes} there; slice one of them")
    code = WRITE if kind == "write" else READ
    if code == READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    number, native_group = announced(notify, remote, group)
    if message is not None:
        message = message_bytes(notify, message)
    deadline = core.deadline(timeout)
    engine, here, there = core.engine, offset_of(view), start_of(remote)

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post(route, code, here, there, nbytes, number, deadline, nowait, after, native_group, message)

    room = PLAIN if number == NO_NOTIFY else NOTIFIED
    if stream is not None:
        operation = launch_after(core, kind, view, remote, nbytes, deadline, post, stream, room)
    else:
        operation = launch(core, kind, view, remote, nbytes, NBYTES, deadline, post, nowait=nowait, room=room)
    if group is not None:
        group.note(operation)
    return operation


def transfer_pages(
    core: Core,
    kind: str,
    local: Local,
    remote: RemoteBuffer,
    local_pages: Pages,
    remote_pages: Pages,
    page_bytes: int,
    notify: int | None,
    timeout: float | None,
    *,
    message: bytes | None = None,
    stream: Stream | None = None,
    nowait: bool = False,
) -> Operation[int]:
    """Write or read a list of pages."""
    view = view_of(core, local)
    check_remote(remote)
    if type(page_bytes) is not int:  # a call of Python's less for an int
        page_bytes = as_int("page_bytes", page_bytes)
    if not 0 < page_bytes < _TOO_LONG:
        raise ValueError(f"page_bytes must be positive and less than 2**63, not {shown(page_bytes)}")
    here, there = index_array(local_pages), index_array(remote_pages)
    if here.size != there.size:
        raise ValueError(f"{kind}: {here.size} pages here and {there.size} there")
    code = WRITE if kind == "write_pages" else READ
    if code == READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    nbytes = here.size * page_bytes
    if nbytes >= _TOO_LONG:
        raise ValueError(f"{kind}: {here.size} pages of {page_bytes} bytes are 2**63 bytes or more: pass fewer")
    # The native call checks the local pages. For the remote ones it knows only the whole share, not a slice of it.
    if remote.nbytes != share_of(remote).nbytes and _outside(there, page_bytes, remote.nbytes):
        return Failed(core, kind, None, nbytes, from_native(*BOUNDS, operation=kind, peer=remote.owner))
    number = NO_NOTIFY if notify is None else notify_value(notify)
    if message is not None:
        message = message_bytes(notify, message)
    deadline = core.deadline(timeout)
    engine, offset, remote_offset, local_nbytes = core.engine, offset_of(view), start_of(remote), view.nbytes
    if not here.size:
        page_bytes = 1  # of no pages any size will do, also one that no lane could carry
    try:
        route = ready_route(core, view, remote) if not core.closed else None
    except ZerohopError:
        route = None  # launch() meets it again, and knows what to do
    # The pages may be posted later, and wrong numbers must raise ValueError now.
    if route is None and _outside(here, page_bytes, view.nbytes):
        raise ValueError(f"{kind}: a page number is negative, or its page not within the {view.nbytes} bytes here")

    def own() -> None:
        nonlocal here, there
        here, there = here.copy(), there.copy()

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post_pages(
            route,
            code,
            here,
            there,
            page_bytes,
            number,
            deadline,
            nowait,
            offset,
            remote_offset,
            local_nbytes,
            after,
            None,
            message,
        )

    room = PLAIN if number == NO_NOTIFY else NOTIFIED
    if stream is not None:
        return launch_after(core, kind, view, remote, nbytes, deadline, post, stream, room, own)
    if route is not None:
        # This is the beginning of launch() for a route that was found already; launch() handles all errors.
        try:
            return posted_operation(core, kind, route, nbytes, post(route.id, True), view, NBYTES)
        except NativeError:
            pass
    return launch(core, kind, view, remote, nbytes, NBYTES, deadline, post, nowait=nowait, room=room, own=own)


def atomic(
    core: Core,
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
    if type(offset) is not int:
        offset = as_int("offset", offset)
    if not 0 <= offset <= remote.nbytes - _WORD:
        raise ValueError(f"{kind}: 8 bytes at offset {shown(offset)} do not lie within {remote.nbytes}")
    where = start_of(remote) + offset
    if where % _WORD:
        raise ValueError(f"{kind}: the word at offset {where} of the shared memory is not aligned to 8 bytes")
    code = _FETCH_ADD if kind == "fetch_add" else _COMPARE_SWAP
    operand, compare = _word("value" if code == _FETCH_ADD else "swap", operand), _word("compare", compare)
    deadline = core.deadline(timeout)
    engine = core.engine
    if core.scratch is None:
        core.scratch = register(core, bytearray(_WORD), None)
    scratch = core.scratch

    def post(route: int, nowait: bool) -> tuple[int, int] | Op:
        return engine.post_atomic(route, code, where, operand, compare, deadline, nowait)

    return launch(core, kind, scratch, remote, _WORD, NATIVE_VALUE, deadline, post, nowait=nowait)


def notify_peer(
    core: Core,
    target: Connection | RemoteBuffer,
    value: int,
    timeout: float | None,
    *,
    message: bytes | None = None,
    nowait: bool = False,
) -> Operation[int]:
    """Send a notification without data."""
    number = notify_value(value, "value")
    if message is not None:
        message = message_bytes(value, message)
    link: PeerLink | None
    if isinstance(target, Connection):
        link = link_of(target)
        if link.core is not core:
            raise ValueError("the Connection belongs to another Context")
    elif isinstance(target, RemoteBuffer):
        link = core.connected.get(target.owner)
    else:
        raise TypeError(f"notify takes a Connection, or a RemoteBuffer of the peer, not {type(target).__name__}")
    if link is not None:
        deadline = core.deadline(timeout)
        post = notify_post(core, link, number, deadline, message)
        return post_message(core, link, "notify", None, deadline, post, NBYTES, nowait=nowait, room=NOTIFIED)
    assert isinstance(target, RemoteBuffer)
    core.check_open()
    deadline = core.deadline(timeout)
    where = address.parse(target.url)
    if nowait:
        return first_use(core, "notify", 0, target.url, lambda: core.peers.connect(where))

    async def work() -> int:
        link = await core.peers.connect(where)
        post = notify_post(core, link, number, deadline, message)
        return await defer_post(core, post, deadline, 0, NBYTES, link.line(NOTIFIED), lambda: until_lane(link))

    return defer(core, "notify", 0, deadline, work, None, peer=target.owner)


def flush(core: Core, connection: Connection | None, timeout: float | None) -> Operation[int]:
    """Flush one Connection or all."""
    core.check_open()
    if connection is not None:
        if not isinstance(connection, Connection):
            raise TypeError(f"flush takes a Connection, or nothing for all, not {type(connection).__name__}")
        if link_of(connection).core is not core:
            raise ValueError("the Connection belongs to another Context")
        return connection.flush(timeout=timeout)
    before = unfinished(core)
    deadline = core.deadline(timeout)

    async def work() -> int:
        await all_ended(before)
        for link in list(core.connected.values()):
            if link.alive:
                await flush_lanes(core, link, deadline)
        return 0

    return defer(core, "flush", 0, deadline, work, None)


def explain(core: Core, local: Local, remote: RemoteBuffer, timeout: float | None) -> Explanation:
    """Explain the path of a pair of memories; connect first if needed."""
    view = view_of(core, local)
    check_remote(remote)
    core.check_open()
    deadline_ns = core.deadline(timeout)
    route = ready_route(core, view, remote)
    if route is None:

        async def work() -> Route:
            return await find_route(core, view, remote)

        found: Operation[Route] = defer(core, "explain", 0, deadline_ns, work, view)
        route = found.result()
    return route.explanation


def check_remote(remote: object) -> None:
    """Raise TypeError unless the argument is a handle."""
    if not isinstance(remote, RemoteBuffer):
        raise TypeError(
            f"the remote side is a RemoteBuffer, not {type(remote).__name__}; "
            f"bytes become one with RemoteBuffer.from_bytes"
        )


def announced(notify: int | None, remote: RemoteBuffer, group: OperationGroup | None) -> tuple[int, Group | None]:
    """Return a notification's number and the operation group, as the engine takes them."""
    number = NO_NOTIFY if notify is None else notify_value(notify)
    if group is None:
        return number, None
    group.check_owner(remote)
    return number if notify is None else group.announce(number), group.group


def _word(name: str, value: int) -> int:
    """Return the 64 bits of the argument ``name``, a number with a sign or without."""
    number = value if type(value) is int else as_int(name, value)
    if not -(1 << 63) <= number <= _WORD_MASK:
        raise ValueError(f"{name} must fit into 64 bits, which {shown(number)} does not")
    return number & _WORD_MASK


def index_array(numbers: Pages, what: str = "page numbers") -> np.ndarray[Any, np.dtype[np.int64]]:
    """Convert numbers, which errors call ``what``, to the form that the native call takes."""
    if type(numbers) is np.ndarray and numbers.dtype is _INT64 and numbers.ndim == 1 and numbers.flags.carray:
        return numbers
    if is_masked(numbers):
        raise TypeError(f"{what} in a masked array, whose mask would be lost. Fix: pass x.data, or x.compressed()")
    try:
        array = np.asarray(numbers)
    except ValueError as error:  # a list of lists of different lengths
        raise ValueError(f"{what} are a one-dimensional array: {error}") from None
    except (TypeError, RuntimeError) as error:  # torch raises both, and says nothing of the argument
        said = f"{what} are integers in an array that NumPy can read, which this {type(numbers).__name__} is not"
        fix = way_to_integers(numbers) if is_tensor(numbers) else ""
        raise TypeError(f"{said}. Fix: pass {fix}" if fix else f"{said}: {error}") from error
    if array.ndim != 1:
        raise ValueError(f"{what} are a one-dimensional array, not one of shape {array.shape}")
    if array.dtype.kind == "O" and all(isinstance(number, int) for number in array.flat):
        try:
            return array.astype(np.int64)
        except OverflowError:
            raise ValueError(f"{what} do not fit into 64 bits") from None
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what} are integers, not {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= _TOO_LONG:
        raise ValueError(f"{what} of 2**63 and more are beyond any memory")
    return np.require(array, np.int64, ("C", "A", "E"))


def _outside(pages: np.ndarray[Any, np.dtype[np.int64]], page_bytes: int, nbytes: int) -> bool:
    """Tell whether a page does not lie within a range of ``nbytes``."""
    # Negative numbers become very large ones when they are read as unsigned.
    return bool(pages.size) and int(pages.view(np.uint64).max()) >= nbytes // page_bytes
