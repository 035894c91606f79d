"""A signal's handler that raises in the middle of a Ring's calls: each transfer still has one result, the right one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.interrupting import at_each_line
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.storage import Completion, Ring, Store

MIB = 1 << 20
COUNT = 3


def all_results(ring: Ring) -> list[Completion]:
    """Begins what the interrupted call has added, and takes all results that come."""
    ring.submit()
    found: list[Completion] = []
    while some := ring.wait(timeout=PATIENCE_S):
        found += some
    return found


@pytest.mark.parametrize("lent", ["array", "iov"])
def test_at_each_line(
    store: Store, random_file: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch, lent: str
) -> None:
    # This drops an exception that comes up in a destructor, where nobody can catch it.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    there = random_file("data", COUNT * MIB)
    iov = store.iov(COUNT * MIB)
    target = iov.memory.numpy() if lent == "iov" else np.zeros(COUNT * MIB, np.uint8)
    places, sizes = np.arange(COUNT) * MIB, np.full(COUNT, MIB)
    ring = store.ring(COUNT, io_depth=COUNT)
    seen: set[int] = set()
    with store.open("data").result() as file:

        def action() -> None:
            target[:] = 0
            ring.prepare_many(iov if lent == "iov" else target, file, places, sizes, places)
            ring.submit()

        def check() -> None:
            results = all_results(ring)
            assert sorted(each.userdata for each in results) in ([], [*range(COUNT)])
            assert [(each.error, each.result) for each in results if each.error or each.result != MIB] == []
            new = {each.index for each in results}
            assert len(new) == len(results)
            assert not new & seen
            seen.update(new)
            assert (target == (there if results else 0)).all()
            # The results say that nothing uses the memory any more.
            target[:] = 1
            store.context.flush().result(PATIENCE_S)
            assert (target == 1).all()
            assert ring.wait(timeout=0) == []

        at_each_line(action, check)
        # All entries are free again.
        action()
        with pytest.raises(zh.WouldBlock):
            ring.prepare(target[:1], file, 0)
        check()
    iov.close()
