"""Makes transfers of lists of ranges, each with a length of its own: write_list and read_list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.core.memory.access import offset_of
from zerohop.core.memory.register import view_of
from zerohop.core.memory.remote_buffer import share_of, start_of
from zerohop.core.runtime.native_operation import NBYTES
from zerohop.core.runtime.operation import Failed, Operation
from zerohop.core.transfers.message_lane import NOTIFIED, PLAIN, message_bytes
from zerohop.core.transfers.posting import launch, launch_after
from zerohop.core.transfers.transfer import BOUNDS, NO_NOTIFY, READ, WRITE, announced, check_remote, index_array
from zerohop.errors import from_native

if TYPE_CHECKING:
    import numpy as np

    from zerohop._native import Op
    from zerohop.core.lifecycle import Core
    from zerohop.core.memory.register import Local
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.runtime.streams import Stream
    from zerohop.core.transfers.op_group import OperationGroup
    from zerohop.core.transfers.transfer import Pages

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


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
    # Copies, because the caller may change the arrays while they are checked, and before the ranges are posted.
    here = index_array(local_offsets, "offsets here").copy()
    there = index_array(remote_offsets, "offsets there").copy()
    sizes = index_array(lengths, "lengths").copy()
    if not here.size == there.size == sizes.size:
        raise ValueError(f"{kind}: {here.size} offsets here, {there.size} there, and {sizes.size} lengths")
    code = WRITE if kind == "write_list" else READ
    if code == READ and view.readonly:
        raise ValueError("cannot read into read-only memory")
    if _outside(here, sizes, view.nbytes):
        raise ValueError(
            f"{kind}: an offset or a length is negative, or its range not within the {view.nbytes} bytes here"
        )
    nbytes = int(sizes.sum())
    # The owner checks the whole share, and does not know of a slice of it.
    if remote.nbytes != share_of(remote).nbytes and _outside(there[sizes != 0], sizes[sizes != 0], remote.nbytes):
        return Failed(core, kind, None, nbytes, from_native(*BOUNDS, operation=kind, peer=remote.owner))
    number, native_group = announced(notify, remote, group)
    if message is not None:
        message = message_bytes(notify, message)
    deadline = core.deadline(timeout)
    engine, offset, remote_offset, local_nbytes = core.engine, offset_of(view), start_of(remote), view.nbytes

    def post(route: int, nowait: bool, after: int | None = None) -> int | Op:
        return engine.post_ranges(
            route,
            code,
            here,
            there,
            sizes,
            number,
            deadline,
            nowait,
            offset,
            remote_offset,
            local_nbytes,
            after,
            native_group,
            message,
        )

    room = PLAIN if number == NO_NOTIFY else NOTIFIED
    if stream is not None:
        operation = launch_after(core, kind, view, remote, nbytes, deadline, post, stream, room)
    else:
        operation = launch(core, kind, view, remote, nbytes, NBYTES, deadline, post, room=room)
    if group is not None:
        group.note(operation)
    return operation


def _outside(offsets: Numbers, lengths: Numbers, nbytes: int) -> bool:
    """Tell whether a number is negative, or a range not within ``nbytes``."""
    if not offsets.size:
        return False
    if int(offsets.min()) < 0 or int(lengths.min()) < 0 or int(lengths.max()) > nbytes:
        return True
    return bool((offsets > nbytes - lengths).any())
