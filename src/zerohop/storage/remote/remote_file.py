"""Declares RemoteFile, the number that a server has given to an open file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop._native import ServedNumber


class RemoteFile:
    """Stands for an open file of a server. The file is closed there when the last reference is dropped.

    Attributes:
        number: the server's number.
        lane_number: holds its number in requests over the lane; None if it has none.
    """

    __slots__ = ("_close", "lane_number", "number")

    def __init__(self, number: int, lane_number: ServedNumber | None, close: Callable[[int], None]) -> None:
        self.number = number
        self.lane_number = lane_number
        self._close = close  # last: the destructor looks for it

    def __del__(self) -> None:
        close = getattr(self, "_close", None)  # the constructor may have been interrupted
        if close is not None:
            try:
                close(self.number)
            except BaseException:  # of a signal's handler: nobody can close it again
                close(self.number)
                raise
