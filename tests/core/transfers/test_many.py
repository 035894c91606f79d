"""Posting many transfers as one Operation, at moments that only a call made for the purpose can hit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.memory.access import check_open
from zerohop.core.transfers import many
from zerohop.core.transfers.posting import launch

if TYPE_CHECKING:
    from support.fixtures import OpenContext


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_memory_that_closes_while_they_are_posted(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The Operation waits for all the others, and then says so."""
    here, there = open_context(Options()), open_context(Options())
    target = there.register(np.zeros(24, np.uint8))
    handle = target.share("rw")
    sources = [here.register(np.full(8, 1 + k, np.uint8)) for k in range(3)]
    here.read(handle, np.zeros(24, np.uint8)).result(PATIENCE_S)

    def close_and_launch(core: Any, kind: str, view: Any, *rest: Any, **options: Any) -> Any:
        if view is sources[at]:
            view.close()  # as another thread can, when all pairs have been checked
            check_open(view)
        return launch(core, kind, view, *rest, **options)

    monkeypatch.setattr(many, "launch", close_and_launch)
    pairs = [(source, handle[8 * k : 8 * k + 8]) for k, source in enumerate(sources)]
    error = here.write_many(pairs, notify=1).exception(PATIENCE_S)
    assert isinstance(error, zh.Closed)
    assert error.operation == "write_many"
    here.flush().result(PATIENCE_S)
    assert target.read_bytes() == b"".join(bytes([0 if k == at else 1 + k] * 8) for k in range(3))
    with pytest.raises(zh.WouldBlock):
        there.notification_nowait()
