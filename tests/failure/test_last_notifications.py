"""Notifications of operations that have ended well arrive, although their sender closes its Context at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    import zerohop as zh
    from support.fixtures import OpenContext

BULK = 4 << 20
TOLD = 20


@pytest.mark.parametrize(("provider", "mapped"), [("shm", True), ("shm", False), ("tcp", False)])
@pytest.mark.parametrize("kind", ["write", "read"])
def test_behind_bulk_data(open_context: OpenContext, provider: str, mapped: bool, kind: str) -> None:
    """Frames of large writes fill the lane, and the small frames of notifications wait for room."""
    for _ in range(10):
        owner, here = (open_context(Options(providers=(provider,))) for _ in range(2))
        small = owner.alloc(4096) if mapped else owner.register(np.zeros(4096, np.uint8))
        bulk = owner.register(np.zeros(BULK, np.uint8))
        handle, bulk_handle = small.share("rw"), bulk.share("rw")
        mine, source = here.register(np.ones(4096, np.uint8)), here.register(np.ones(BULK, np.uint8))
        here.write(mine, handle).result(PATIENCE_S)
        under_way = [here.write(source, bulk_handle) for _ in range(4)]
        for value in range(TOLD):
            told: zh.Operation[int] = (
                here.write(mine, handle, notify=value) if kind == "write" else here.read(handle, mine, notify=value)
            )
            told.result(PATIENCE_S)
        here.close(5)
        for operation in under_way:
            operation.exception(PATIENCE_S)
        notes: list[Any] = [owner.notification(PATIENCE_S).result().value for _ in range(TOLD)]
        assert sorted(notes) == list(range(TOLD))
        owner.close()
