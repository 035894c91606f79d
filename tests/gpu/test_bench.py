"""The benchmark's memory of torch's expandable segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu.tensors import options
from support.sizes import MIB
from zerohop.cli.bench.session import LocalMemory
from zerohop.cli.bench.tensors import set_expandable
from zerohop.cli.payload import digest

if TYPE_CHECKING:
    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
# Cycles for which a kernel waits: a tenth of a second on every GPU.
CYCLES = 200_000_000


def test_it_keeps_its_payload(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zeros that torch has queued for it do not overwrite the payload, however late torch's stream gets there."""
    context = open_context(options())
    payload = np.random.default_rng().integers(0, 256, MIB, dtype=np.uint8)
    zeros = torch.zeros

    def late_zeros(*arguments: Any, **keywords: Any) -> Any:
        torch.cuda._sleep(CYCLES)
        return zeros(*arguments, **keywords)

    monkeypatch.setattr(torch, "zeros", late_zeros)
    try:
        memory = LocalMemory(context, "expandable cuda:0", MIB)
        memory.put(payload)
        torch.cuda.synchronize()
        assert memory.digest(MIB) == digest(payload)
        memory.close()
    finally:
        set_expandable(on=False)
