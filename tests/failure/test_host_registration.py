"""Host memory that devices refuse: it takes another path and says why, and no other memory is concerned."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import zerohop as zh
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.base import backoff

if TYPE_CHECKING:
    from support.fixtures import OpenContext

NBYTES = 4096
PROVIDERS = ("shm", "p2p")


def open_here(open_context: OpenContext, require: Literal["direct"] | None = None) -> zh.Context:
    return open_context(Options(PROVIDERS, require, sim_devices=1))


def on_a_device(open_context: OpenContext) -> zh.RemoteBuffer:
    """Return a handle to a device's memory of another Context."""
    return open_here(open_context).alloc(NBYTES, "sim:0").share("rw")


def expect_direct(context: zh.Context, handle: zh.RemoteBuffer) -> None:
    """Other host memory is copied by the device itself."""
    operation = context.write(np.ones(NBYTES, np.uint8), handle)
    operation.result(PATIENCE_S)
    explanation = operation.explain()
    assert (explanation.provider, explanation.direct) == ("p2p", True)


@pytest.mark.parametrize("warm", [False, True], ids=["first use", "reached before"])
@pytest.mark.parametrize("nothing", [bytearray, lambda: np.zeros(0)], ids=["bytearray", "array"])
def test_no_bytes(open_context: OpenContext, nothing: type[bytearray], warm: bool) -> None:
    """Nothing needs no registration; its transfer succeeds, and leaves the path of other memory alone."""
    context, handle = open_here(open_context, "direct"), on_a_device(open_context)
    if warm:
        expect_direct(context, handle)
    assert context.write(nothing(), handle[:0]).result(PATIENCE_S) == 0
    assert context.read(handle[:0], nothing()).result(PATIENCE_S) == 0
    assert context.explain(nothing(), handle[:0]).direct
    expect_direct(context, handle)


def overlapping(context: zh.Context, array: np.ndarray) -> tuple[zh.Memory, zh.Memory]:
    """Register two raw ranges of which the driver takes only the one that comes first."""
    address = array.ctypes.data
    return context.register((address, NBYTES, "host")), context.register((address + 64, NBYTES, "host"))


@pytest.mark.parametrize("warm", [False, True], ids=["first use", "reached before"])
def test_memory_that_is_refused(open_context: OpenContext, warm: bool) -> None:
    context, handle = open_here(open_context), on_a_device(open_context)
    array = np.zeros(2 * NBYTES, np.uint8)
    known, refused = overlapping(context, array)
    with known:
        context.write(known, handle if warm else on_a_device(open_context)).result(PATIENCE_S)
        operation = context.write(refused, handle)
        assert operation.result(PATIENCE_S) == NBYTES
        why = dict(context.explain(refused, handle).rejected)["p2p (peer)"]
        assert why.startswith("the memory here: host memory registered in part")
        expect_direct(context, handle)
    refused.close()
    with context.register((array.ctypes.data + 64, NBYTES, "host")) as again:
        assert context.explain(again, handle).direct
        context.write(again, handle).result(PATIENCE_S)
        assert context.explain(again, handle).direct


def test_memory_that_is_refused_where_only_direct_will_do(open_context: OpenContext) -> None:
    context, handle = open_here(open_context, "direct"), on_a_device(open_context)
    array = np.zeros(2 * NBYTES, np.uint8)
    known, refused = overlapping(context, array)
    context.write(known, handle).result(PATIENCE_S)
    with pytest.raises(zh.Unsupported, match="the memory here: host memory registered in part"):
        context.write(refused, handle).result(PATIENCE_S)
    expect_direct(context, handle)
    known.close()
    refused.close()


def test_a_route_goes_with_its_memory(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that would be dropped later, because a better path may work by then."""
    monkeypatch.setattr(backoff, "HOLD_OFF_S", 1000.0)
    context, handle = open_here(open_context), on_a_device(open_context)
    array = np.zeros(2 * NBYTES, np.uint8)
    known, refused = overlapping(context, array)
    context.write(known, handle).result(PATIENCE_S)
    before = context.statistics().routes
    context.write(refused, handle).result(PATIENCE_S)
    assert context.statistics().routes == before + 1
    refused.close()
    gc.collect()
    eventually(lambda: context.statistics().routes == before, "the route is gone")
    known.close()
