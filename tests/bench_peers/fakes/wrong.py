"""Copies, and then changes one byte: of a page list, one that nobody named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from bench.peers import workload

from bench_peers.fakes.copies import Copies

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.workload import Case, Pages, Side


class Wrong(Copies):
    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        copy = super().once(case, sources, targets)
        memory = self.memory if case.name == "read" else self.remote
        untouched = np.setdiff1d(np.arange(case.span // case.bytes), targets)
        where = int(untouched[0]) * case.bytes if untouched.size else case.span - 1

        def copy_wrongly() -> None:
            copy()
            memory[where] = 0 if memory[where] else 1

        return copy_wrongly


def run(side: Side) -> None:
    workload.run(Wrong(side), side)
