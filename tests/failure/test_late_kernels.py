"""Copy kernels that come while a path is being made: that there are none is not said of it for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.options import Options
from support.patience import PATIENCE_S
from support.sizes import MIB
from zerohop.core.kernels.loading import CopyKernels
from zerohop.core.lanes.routes import Routes

if TYPE_CHECKING:
    import pytest

    from support.fixtures import OpenContext
    from zerohop.core.lanes.link import Route


def test_just_before_the_path_is_known(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(providers=("p2p",))
    context, owner = open_context(options), open_context(options)
    there = owner.alloc(MIB, "sim:0")
    handle = there.share("rw")
    with context.alloc(MIB, "sim:0") as memory:
        context.write(memory, handle).result(PATIENCE_S)
    said, remember = ["not yet"], Routes._remember

    def remember_late(self: Routes, route: Route) -> None:
        if said[0]:
            said[0] = ""
            context._core._kernels_came_late()
        remember(self, route)

    monkeypatch.setattr(CopyKernels, "why_not", property(lambda _: said[0]))
    monkeypatch.setattr(Routes, "_remember", remember_late)
    fresh = context.alloc(MIB, "sim:0")
    for _ in range(2):
        operation = context.write_pages(fresh, handle, [0, 1], [1, 0], page_bytes=4096)
        assert operation.result(PATIENCE_S) == 8192
        assert "page by page" not in str(operation.explain())
    assert not said[0]
