"""GPU drivers, as far as they can be tried without a GPU: their libraries are found, and say that there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerohop as zh
from support.buffers import GPUS
from zerohop import _native

LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64"}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_library_that_is_not_there_is_named(kind: str) -> None:
    why = _native.gpu_drivers()[kind]
    if not why:
        pytest.skip(f"the library of {kind} is installed here")
    assert LIBRARIES[kind] in why


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine may have an AMD GPU")
def test_hip_without_a_device() -> None:
    """The real library: its table resolves, and it answers that there is no device."""
    if why := _native.gpu_drivers()["hip"]:
        pytest.skip(f"{why} (apt-get install libamdhip64-5)")
    with zh.Context() as context:
        assert not [device for device in context.devices if device.kind == "hip"]
        with pytest.raises(ValueError, match=r"hip: the driver (sees|shows) no device") as caught:
            context.alloc(64, "hip:0")
        assert "zerohop doctor" in str(caught.value)


@pytest.mark.skipif(GPUS > 0, reason="this machine has a GPU")
def test_an_error_says_why_there_is_no_gpu() -> None:
    with zh.Context() as context, pytest.raises(ValueError, match="cuda:0") as caught:
        context.alloc(64, "cuda:0")
    text = str(caught.value)
    assert "libcuda.so.1" in text or "driver" in text
    assert "this Context has host" in text
