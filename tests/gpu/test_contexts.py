"""Memory of a CUDA context that is not the device's primary one, which frameworks and this library use."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest

from gpu.others import Other
from support.options import Options
from support.outcomes import attempt
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
MIB = 1 << 20
# It is moved, or refused for what it is. A lost peer, a failed device or a deadline would be something else.
EXPECTED = ("ok", "RegistrationFailed", "Unsupported")


@pytest.fixture
def foreign() -> Iterator[tuple[int, int, str]]:
    """Memory of another context on the first GPU, filled with sevens."""
    library = ctypes.CDLL("libcuda.so.1")
    torch.zeros(1, device="cuda:0")
    device, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    address = ctypes.c_uint64()
    assert library.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert library.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    try:
        assert library.cuMemAlloc_v2(ctypes.byref(address), MIB) == 0
        assert library.cuMemsetD8_v2(address, 7, MIB) == 0
        assert library.cuCtxSynchronize() == 0
        assert library.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
        yield address.value, MIB, "cuda:0"
    finally:
        library.cuCtxDestroy_v2(context)


def test_it_is_moved_or_refused(open_context: OpenContext, foreign: tuple[int, int, str]) -> None:
    """Either way in bounded time, by name; torch's context and other memory are as before."""
    context = open_context(Options(sim_devices=0))
    with Other(MIB) as other:
        outcome = attempt(lambda: context.write(foreign, other.handle).result(PATIENCE_S))
        assert outcome.kind in EXPECTED, outcome
        if outcome.kind == "ok":
            other.expect(0, b"\x07" * MIB)
        else:
            assert outcome.fix
        source = torch.full((MIB,), 9, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        context.write(source, other.handle).result(PATIENCE_S)
        other.expect(0, b"\x09" * MIB)


def test_a_peer_writes_to_it(open_context: OpenContext, foreign: tuple[int, int, str]) -> None:
    owner, context = open_context(Options(sim_devices=0)), open_context(Options(sim_devices=0))
    source = torch.full((MIB,), 5, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    outcome = attempt(lambda: context.write(source, owner.register(foreign).share("rw")).result(PATIENCE_S))
    assert outcome.kind in EXPECTED, outcome
    if outcome.kind == "ok":
        assert owner.register(foreign).read_bytes() == b"\x05" * MIB
    else:
        assert outcome.fix
