"""Communicators as mpi4py has them, of the threads of one process."""

from __future__ import annotations

import threading
from typing import Any

from support.patience import PATIENCE_S


class Exchange:
    """Has what the ranks of a communicator share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: dict[int, Any] = {}
        self.barrier = threading.Barrier(size)


class Communicator:
    """Stands for one rank."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self._rank = rank
        self._exchange = exchange

    def allgather(self, value: Any) -> list[Any]:
        """Wait for all ranks, and return their values."""
        self._exchange.values[self._rank] = value
        self._exchange.barrier.wait(PATIENCE_S)
        return [self._exchange.values[rank] for rank in range(self._exchange.size)]

    def Get_rank(self) -> int:  # noqa: N802 - mpi4py's name
        """Return the rank."""
        return self._rank

    def Get_size(self) -> int:  # noqa: N802 - mpi4py's name
        """Return the number of ranks."""
        return self._exchange.size
