"""Makes transfers of lists of ranges, each with a length of its own: write_list and read_list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Ranges
from zerohop.core.memory.access import offset_of
from zerohop.core.memory.register import view_of
from zerohop.core.memory.remote_buffer import start_of
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.core.runtime.operation import Failed, Operation
from zerohop.core.transfers.message_lane import NOTIFIED, PLAIN, message_bytes
from zerohop.core.transfers.posting import launch, launch_after
from zerohop.core.transfers.transfer import BOUNDS, NO_NOTIFY, READ, WRITE, announced, check_remote, index_array
from zerohop.errors import from_native

if TYPE_CHECKING:
    from zerohop._native import Op
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.register import Local
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.op_group import OperationGroup
    from zerohop.core.transfers.transfer import Pages


def transfer_list(
    core: Core,
    kind: str,
    local: Local,
    remote: RemoteBuffer,
    local_offsets: Pages,
    remote_offsets: Pages,
    lengths: Pages,
    notify: int | None,
    timeout: float | None,
    *,
    message: bytes | None = None,
    stream: Stream | None = None,
    group: OperationGroup | None = None,
) -> Operation[int]:
    """Do Context.write_list and read_list."""
    view = view_of(core, local)
    check_remote(remote)
    here, there = index_array(local_offsets, "offsets here"), index_array(remote_offsets, "offsets there")
    sizes = index_array(lengths, "lengths")
    if not here.size == there.size == sizes.size:
        raise ValueError(f"{kind}: {here.size} offsets here, {there.size} there, and {sizes.size} lengths")
    code = WRITE if kind == "write_list" else READ
    if code == READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    # The owner checks the whole share, and does not know of a slice of it.
    ranges = Ranges(here, there, sizes, offset_of(view), view.nbytes, start_of(remote), remote.nbytes)
    if not ranges.local_inside:
        raise ValueError(
            f"{kind}: an offset or a length is negative, or its range not within the {view.nbytes} bytes here"
        )
    nbytes = ranges.nbytes
    if not ranges.remote_inside:
        return Failed(core, kind, None, nbytes, from_native(*BOUNDS, operation=kind, peer=remote.owner))
    number, native_group = announced(notify, remote, group)
    if message is not None:
        message = message_bytes(notify, message)
    deadline = core.deadline(timeout)
    engine = core.engine

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post_ranges(route, code, ranges, number, deadline, nowait, after, native_group, message)

    room = PLAIN if number == NO_NOTIFY else NOTIFIED
    if stream is not None:
        operation = launch_after(core, kind, view, remote, nbytes, deadline, post, stream, room)
    else:
        operation = launch(core, kind, view, remote, nbytes, NBYTES, deadline, post, room=room)
    if group is not None:
        group.note(operation)
    return operation
