"""Measures zerohop: writes, reads and lists between registered tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.peers import workload
from bench.peers.tensors import TensorHalf

import zerohop

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.workload import Case, Pages, Side

_TIMEOUT = 60.0


class _Half(TensorHalf):
    """Holds a Context, and the tensor registered with it."""

    names: ClassVar[frozenset[str]] = frozenset({"write", "read", "write_pages", workload.LIST})

    def __init__(self, side: Side) -> None:
        """Register the tensor, and exchange the handle."""
        super().__init__(side)
        self.context = zerohop.Context(timeout=_TIMEOUT)
        self.memory = self.context.register(self.tensor)
        if side.rank:
            side.link.send(bytes(self.memory.share("rw")))
        else:
            self.remote = zerohop.RemoteBuffer.from_bytes(side.link.recv())
            self.note = str(self.context.explain(self.memory, self.remote))

    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        context, here, there = self.context, self.memory[: case.span], self.remote[: case.span]
        if case.name == "write_pages":
            return lambda: context.write_pages(here, there, sources, targets, page_bytes=case.bytes).result()
        if case.name == workload.LIST:
            lengths = case.lengths()
            return lambda: context.write_list(here, there, sources, targets, lengths).result()
        if case.name == "read":
            return lambda: context.read(there, here).result()
        return lambda: context.write(here, there).result()


def run(side: Side) -> None:
    """Run one process's half."""
    side.results.send(("version", zerohop.__version__))
    workload.run(_Half(side), side)
