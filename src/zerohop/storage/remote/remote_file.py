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
        self._close = close

    def __del__(self) -> None:
        self._close(self.number)
