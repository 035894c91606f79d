"""Declares RemoteFile, the number that a server has given to an open file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RemoteFile:
    """Stands for an open file of a server. The file is closed there when the last reference is dropped.

    Attributes:
        number: the server's number.
    """

    __slots__ = ("_close", "number")

    def __init__(self, number: int, close: Callable[[int], None]) -> None:
        self.number = number
        self._close = close  # last: the destructor looks for it

    def __del__(self) -> None:
        close = getattr(self, "_close", None)  # the constructor may have been interrupted
        if close is not None:
            close(self.number)
