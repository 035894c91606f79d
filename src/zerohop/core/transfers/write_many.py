"""Does write_many where its native part (native/bind/many.cpp) posted nothing: several memories, or a first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import NativeError, set_layout
from zerohop.core.memory.memory import _Range
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.core.runtime.deferred import Deferred, all_ended, defer, defer_post
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.core.runtime.operation import Finished, Operation
from zerohop.core.transfers.message_lane import NOTIFIED, PLAIN, notify_value
from zerohop.core.transfers.posting import launch
from zerohop.core.transfers.transfer import announced, check_remote
from zerohop.errors import PeerLost, ZerohopError, copy_of, from_native

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zerohop._native import Op
    from zerohop.core.context import Context
    from zerohop.core.memory.memory import Memory, View
    from zerohop.core.transfers.connection import Connection
    from zerohop.core.transfers.op_group import Scope
    from zerohop.core.transfers.transfer import Local

set_layout(_Range, RemoteBuffer)

_KIND: Final = "write_many"


class _Batch:
    """Holds pairs of one Memory and one share."""

    def __init__(self, view: Memory | View, remote: RemoteBuffer) -> None:
        self.view = view
        self.remote = remote
        self.places: list[tuple[int, int, int]] = []
        self.nbytes = 0

    def add(self, view: Memory | View, remote: RemoteBuffer) -> None:
        self.places.append((view._offset, remote._offset, view.nbytes))
        self.nbytes += view.nbytes


def write_many(
    context: Context,
    pairs: Iterable[tuple[Local, RemoteBuffer]],
    *,
    notify: int | None = None,
    timeout: float | None = None,
    scope: Scope | None = None,
) -> Operation[int]:
    """Do Context.write_many and Transport.write_many."""
    batches = _batches(context, pairs, scope)
    if notify is not None:
        notify_value(notify)
    deadline = context._deadline(timeout)
    if not batches:
        if notify is None:
            return Finished(context, _KIND, None, 0, 0, 0)
        if scope is None:
            raise ValueError(f"{_KIND}: a notification of no writes goes to nobody; notify() takes a peer")
        connection = scope.connection
        assert connection is not None  # the Transport has looked
        return _tell(context, connection, 0, notify, deadline, scope)
    if len(batches) == 1:
        return _post(context, batches[0], notify, deadline, scope)
    return _post_all(context, batches, notify, deadline, scope)


def _batches(context: Context, pairs: Iterable[tuple[Local, RemoteBuffer]], scope: Scope | None) -> list[_Batch]:
    """Check the pairs, and group them by what one request can carry."""
    found: dict[tuple[int, bytes], _Batch] = {}
    for number, pair in enumerate(pairs):
        try:
            local, remote = pair
        except (TypeError, ValueError):
            raise TypeError(f"{_KIND}: a pair is (memory here, RemoteBuffer), which number {number} is not") from None
        check_remote(remote)
        view = context._view(local)
        if scope is not None:
            scope.check_owner(remote)
        if view.nbytes > remote.nbytes or (view.nbytes < remote.nbytes and scope is None):
            raise ValueError(f"{_KIND}: {view.nbytes} bytes here and {remote.nbytes} there, in pair {number}")
        # Raw arrays have a Memory each, which is kept by its batch.
        key = id(view._home()), remote._key
        if key not in found:
            found[key] = _Batch(view, remote)
        found[key].add(view, remote)
    return list(found.values())


def _post(context: Context, batch: _Batch, notify: int | None, deadline: int, scope: Scope | None) -> Operation[int]:
    """Post one request."""
    number, group = announced(notify, batch.remote, scope)
    local, remote, lengths = np.array(batch.places, dtype=np.int64).T.copy()
    engine = context._engine

    def post(route: int, nowait: bool) -> int | Op:
        return engine.post_many(route, local, remote, lengths, number, deadline, nowait, group)

    need = PLAIN if notify is None else NOTIFIED
    operation = launch(context, _KIND, batch.view, batch.remote, batch.nbytes, NBYTES, deadline, post, need=need)
    if scope is not None:
        scope.note(operation)
    return operation


def _post_all(
    context: Context, batches: list[_Batch], notify: int | None, deadline: int, scope: Scope | None
) -> Operation[int]:
    """Post several requests, and after all of them the notification."""
    owners = {batch.remote.owner for batch in batches}
    if notify is not None and len(owners) > 1:
        raise ValueError(f"{_KIND}: a notification goes to one peer, and these writes go to {len(owners)}")
    operations: list[Any] = [_post(context, batch, None, deadline, scope) for batch in batches]
    nbytes = sum(batch.nbytes for batch in batches)
    if notify is None and all(type(operation) is Finished for operation in operations):
        return Finished(context, _KIND, None, nbytes, nbytes, 0)
    (owner, *_) = owners

    async def work(whole: Deferred[int]) -> int:
        try:
            await all_ended(operations)
        except BaseException:
            for operation in operations:
                operation.cancel()
            raise
        whole.ways = tuple(dict.fromkeys(operation._way() for operation in operations))
        for operation in operations:
            error = operation.exception()
            if error is not None:
                raise copy_of(error) if isinstance(error, ZerohopError) else error
        if notify is not None:
            connection = context._peers.connected.get(owner)
            if connection is None:
                raise PeerLost("the peer is gone, and was not notified", operation=_KIND, peer=owner)
            # Over NICs done is not yet visible.
            await connection._flush_lanes(deadline)
            await _announce(context, connection, nbytes, notify, deadline, scope)
        return nbytes

    # Each batch has a peer that was just posted to.
    operation = defer(context, _KIND, nbytes, deadline, work, operations, peer=owner, wants_operation=True)
    if scope is not None:
        scope.note(operation)
    return operation


def _tell(
    context: Context, connection: Connection, nbytes: int, notify: int, deadline: int, scope: Scope
) -> Operation[int]:
    async def work() -> int:
        await _announce(context, connection, nbytes, notify, deadline, scope)
        return nbytes

    operation = defer(context, _KIND, nbytes, deadline, work, None, peer=connection.peer)
    scope.note(operation)
    return operation


async def _announce(
    context: Context, connection: Connection, nbytes: int, notify: int, deadline: int, scope: Scope | None
) -> None:
    """Send the notification of what was written, on the control thread."""
    number = scope.announce(notify) if scope is not None else notify

    def post(nowait: bool) -> int | Op:
        return context._engine.post_notify(connection._endpoint, number, deadline, nowait, nbytes)

    try:
        await defer_post(context, post, deadline, 0, NBYTES, connection._line(NOTIFIED), connection._until_lane)
    except NativeError as error:
        raise from_native(*error.args, operation=_KIND, peer=connection.peer) from None
