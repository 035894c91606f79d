"""Describes the link to one peer: the path of its own operations, and the errors of a broken link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from zerohop._native import NativeError, Reason, Status
from zerohop.errors import ZerohopError, from_native

if TYPE_CHECKING:
    from zerohop.core.lanes.paths import Explanation
    from zerohop.core.transfers.connection import Connection


class LanePath(NamedTuple):
    """Describes the path of a Connection's own operations, such as ``send``."""

    connection: Connection
    explanation: Explanation


def lane_error(connection: Connection, error: NativeError, operation: str, provider: str) -> ZerohopError:
    """Return the error of a native call over a lane.

    A lane that is closed, though this side did not close it, has lost its peer.
    """
    status, reason, text = error.args
    where: dict[str, Any] = {"operation": operation, "peer": connection.peer, "provider": provider}
    if status == Status.CLOSED.value:
        connection._context._check_open()
        if connection._lost is not None:
            return from_native(Status.PEER_LOST.value, 0, connection._lost.reason, **where)
        found = connection._context._engine.peer_status(connection._native_id)
        if found[0] != Status.OK:
            status, reason, text = found[0].value, found[1].value, ""
    return from_native(status, reason, text, **where)


def lost_error(connection: Connection, status: Status, reason: Reason) -> ZerohopError:
    """Return the error for a peer that the engine found dead."""
    return from_native(status.value, reason.value, peer=connection.peer, provider=connection._provider)
