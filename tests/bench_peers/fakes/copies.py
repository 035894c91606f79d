"""A peer that copies through a file which both processes map."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from bench.peers import workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.workload import Case, Octets, Pages, Side


class Copies(workload.Half):
    names: ClassVar[frozenset[str]] = frozenset({"write", "read", "write_pages"})
    note = "a copy"

    def __init__(self, side: Side) -> None:
        if side.rank:
            with tempfile.NamedTemporaryFile() as file:
                file.truncate(side.memory_bytes)
                self.memory: Any = np.memmap(file.name, np.uint8, "r+")
                side.link.send(file.name)
                side.link.recv()
        else:
            self.memory = np.zeros(side.memory_bytes, np.uint8)
            path = Path(side.link.recv())
            self.remote: Any = np.memmap(path, np.uint8, "r+")
            side.link.send("mapped")

    def put(self, data: Octets) -> None:
        self.memory[: data.size] = data

    def holds(self, data: Octets) -> bool:
        return np.array_equal(self.memory[: data.size], data)

    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        here, there = (each[: case.span].reshape(-1, case.bytes) for each in (self.memory, self.remote))

        def copy() -> None:
            if case.name == "read":
                here[targets] = there[sources]
            else:
                there[targets] = here[sources]

        return copy


def run(side: Side) -> None:
    side.results.send(("version", "1.0"))
    workload.run(Copies(side), side)
