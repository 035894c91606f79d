"""Makes one Operation of many writes, or of many reads.

The native part of write_many (native/bind/many.cpp) does the plain ones. The others are made here: of several memories,
on a first use, and all reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError, Ranges
from zerohop.core.memory.access import memory_of, offset_of
from zerohop.core.memory.register import view_of
from zerohop.core.memory.remote_buffer import key_of, start_of
from zerohop.core.runtime.deferred import all_ended, defer
from zerohop.core.runtime.deferred_operation import Deferred
from zerohop.core.runtime.deferred_post import defer_post
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.core.runtime.operation import Failed, Finished, Operation, complete_fields
from zerohop.core.transfers.message_lane import NOTIFIED, PLAIN, flush_lanes, message_bytes, notify_value, until_lane
from zerohop.core.transfers.posting import check_layouts, launch
from zerohop.core.transfers.transfer import READ, WRITE, announced, check_remote
from zerohop.errors import PeerLost, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zerohop._native import Op
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.memory.register import Local
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.peers.peer_link import PeerLink
    from zerohop.core.transfers.op_group import OperationGroup

_READ_MANY: Final = "read_many"
# So many bytes fit into any memory.
_ANY_LENGTH: Final = (1 << 63) - 1


class _Batch:
    """Holds pairs of one Memory and one share."""

    def __init__(self, view: Memory | View, remote: RemoteBuffer) -> None:
        self.view = view
        self.remote = remote
        self.places: list[tuple[int, int, int]] = []
        self.nbytes = 0

    def add(self, view: Memory | View, remote: RemoteBuffer) -> None:
        self.places.append((offset_of(view), start_of(remote), view.nbytes))
        self.nbytes += view.nbytes


def transfer_many(
    core: Core,
    kind: str,
    pairs: Iterable[tuple[Local, RemoteBuffer]] | Iterable[tuple[RemoteBuffer, Local]],
    notify: int | None,
    timeout: float | None,
    group: OperationGroup | None = None,
    *,
    message: bytes | None = None,
) -> Operation[int]:
    """Do write_many of a Context and of a Transport, and Context.read_many, whose pairs are the other way round."""
    core.check_open()  # also where there are no pairs
    batches = _batches(core, kind, pairs, group)
    if notify is not None:
        notify_value(notify)
    if message is not None:
        message = message_bytes(notify, message)
    deadline = core.deadline(timeout)
    if not batches:
        if notify is None:
            return Finished(core, kind, None, 0, 0, 0)
        if group is None:
            raise ValueError(f"{kind}: a notification of no transfers goes to nobody; notify() takes a peer")
        link = group.link
        assert link is not None  # the Transport has looked

        async def work() -> int:
            await _announce(core, kind, link, 0, notify, None, deadline, group)
            return 0

        operation = defer(core, kind, 0, deadline, work, None, peer=link.peer)
        group.note(operation)
        return operation
    if len(batches) == 1:
        return _post(core, kind, batches[0], notify, message, deadline, group)
    return _post_all(core, kind, batches, notify, message, deadline, group)


def _batches(core: Core, kind: str, pairs: Iterable[tuple[Any, Any]], group: OperationGroup | None) -> list[_Batch]:
    """Check the pairs, and return batches that one request each can carry."""
    reads = kind == _READ_MANY
    form = "(RemoteBuffer, memory here)" if reads else "(memory here, RemoteBuffer)"
    try:
        each = iter(pairs) if hasattr(pairs, "__iter__") else None  # a Memory has no such method, and would be indexed
    except (TypeError, RuntimeError):  # torch's, for a tensor that cannot be iterated
        each = None
    if each is None:
        raise TypeError(f"{kind} takes pairs {form}, in a list or the like, not {type(pairs).__name__}")
    found: dict[tuple[int, bytes], _Batch] = {}
    for number, pair in enumerate(each):
        try:
            src, dst = pair
        except (TypeError, ValueError):
            raise TypeError(f"{kind}: a pair is {form}, which number {number} is not") from None
        local, remote = (dst, src) if reads else (src, dst)
        check_remote(remote)
        view = view_of(core, local)
        if reads and view.readonly:
            raise ValueError(f"cannot read into read-only memory, in pair {number}")
        if group is not None:
            group.check_owner(remote)
        if view.nbytes > remote.nbytes or (view.nbytes < remote.nbytes and group is None):
            raise ValueError(f"{kind}: {view.nbytes} bytes here and {remote.nbytes} there, in pair {number}")
        # Each raw array has a Memory of its own, which its batch keeps.
        key = id(memory_of(view)), key_of(remote)
        if key not in found:
            found[key] = _Batch(view, remote)
        found[key].add(view, remote)
    return list(found.values())


def _post(
    core: Core,
    kind: str,
    batch: _Batch,
    notify: int | None,
    message: bytes | None,
    deadline: int,
    group: OperationGroup | None,
) -> Operation[int]:
    number, native_group = announced(notify, batch.remote, group)
    # The native call checks each range against the memory itself, and the owner against the whole share.
    local, remote, lengths = np.array(batch.places, dtype=np.int64).T.copy()
    ranges = Ranges(local, remote, lengths, 0, _ANY_LENGTH, 0, _ANY_LENGTH)
    engine, code = core.engine, READ if kind == _READ_MANY else WRITE

    def post(route: int, nowait: bool) -> int | Op:
        return engine.post_ranges(route, code, ranges, number, deadline, nowait, None, native_group, message)

    room = PLAIN if notify is None else NOTIFIED
    operation = launch(core, kind, batch.view, batch.remote, batch.nbytes, NBYTES, deadline, post, room=room)
    if group is not None:
        group.note(operation)
    return operation


def _post_all(
    core: Core,
    kind: str,
    batches: list[_Batch],
    notify: int | None,
    message: bytes | None,
    deadline: int,
    group: OperationGroup | None,
) -> Operation[int]:
    """Post several requests, and after all of them the notification."""
    owners = {batch.remote.owner for batch in batches}
    if notify is not None and len(owners) > 1:
        raise ValueError(f"{kind}: a notification goes to one peer, and these transfers have {len(owners)}")
    for batch in batches:
        check_layouts(batch.view, batch.remote)
    operations: list[Any] = []
    for batch in batches:
        try:
            operations.append(_post(core, kind, batch, None, None, deadline, group))
        except ZerohopError as error:  # another thread has closed the memory, and others may be posted already
            core.check_open()
            complete_fields(error, kind, None)
            operations.append(Failed(core, kind, None, batch.nbytes, error))
    nbytes = sum(batch.nbytes for batch in batches)
    if notify is None and all(type(operation) is Finished for operation in operations):
        return Finished(core, kind, None, nbytes, nbytes, 0)
    (owner, *_) = owners

    async def work(whole: Deferred[int]) -> int:
        await all_ended(operations)
        whole.parts = tuple(operation.explain() for operation in operations)
        for operation in operations:
            error = operation.exception()
            if error is not None:
                raise copy_of(error) if isinstance(error, ZerohopError) else error
        if notify is not None:
            link = core.connected.get(owner)
            if link is None:
                raise PeerLost("the peer is gone, and was not notified", operation=kind, peer=owner)
            # Over NICs the data of an operation that is done may not be visible yet.
            await flush_lanes(core, link, deadline)
            await _announce(core, kind, link, nbytes, notify, message, deadline, group)
        return nbytes

    def take_outcomes() -> None:
        """Cancel what has not ended; the whole stands for its parts, which nobody else sees."""
        for operation in operations:
            operation.cancel()
            operation.explain()

    # One owner is enough here: a flush to another owner waits for the batches of that owner themselves.
    operation = defer(
        core, kind, nbytes, deadline, work, operations, peer=owner, wants_operation=True, at_end=take_outcomes
    )
    if isinstance(operation, Deferred):
        operation.made_of(operations)
    if group is not None:
        group.note(operation)
    return operation


async def _announce(
    core: Core,
    kind: str,
    link: PeerLink,
    nbytes: int,
    notify: int,
    message: bytes | None,
    deadline: int,
    group: OperationGroup | None,
) -> None:
    """Send the notification of all of them, on the control thread."""
    number = group.announce(notify) if group is not None else notify

    def post(nowait: bool) -> int | Op:
        return core.engine.post_notify(link.endpoint, number, deadline, nowait, nbytes, message)

    try:
        await defer_post(core, post, deadline, 0, NBYTES, link.line(NOTIFIED), lambda: until_lane(link))
    except NativeError as error:
        raise from_native(*error.args, operation=kind, peer=link.peer) from None
