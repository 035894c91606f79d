"""What a Context answers its peers beyond what they need of it as a Context: see rpc.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from zerohop.core.context import Context
    from zerohop.core.transfers.connection import Connection

    # Answers what a peer said, at once, on the control thread.
    Service: TypeAlias = Callable[[Context, Connection, bytes], bytes]


class Refusal(Exception):
    """What a service answers with instead: the caller gets the error that this stands for."""

    def __init__(self, status: Status, text: str, reason: Reason = Reason.NONE) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text
