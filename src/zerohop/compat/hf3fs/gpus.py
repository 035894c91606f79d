"""Finds GPUs by number, and waits for what they have been told to do."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from zerohop.compat.process import shared_context
from zerohop.config.checks import check_int
from zerohop.errors import DeviceFailed, StorageError

_KINDS: Final = ("cuda", "hip", "sim")
_CUDA_OK: Final = 0


def names() -> list[str]:
    """Return the names of the GPUs in the order of their numbers; simulated ones where there are no others."""
    devices = shared_context().devices
    return next((found for kind in _KINDS if (found := [each.name for each in devices if each.kind == kind])), [])


def name_of(number: int) -> str:
    """Return the name of a GPU.

    Raises:
        TypeError: the number is no integer.
        StorageError: ENODEV: there is no such GPU.
    """
    known = names()
    if not 0 <= check_int("a GPU's number", number, -(2**31), 2**31 - 1) < len(known):
        raise StorageError(
            f"there is no GPU {number}; there are {', '.join(known) or 'none'}",
            errno=errno.ENODEV,
            fix="zerohop doctor shows what keeps a GPU from being used; ZEROHOP_SIM_DEVICES=2 simulates some",
            operation="gpu",
        )
    return known[number]


def synchronize(name: str) -> None:
    """Wait until a GPU of NVIDIA has done what streams of this process have told it; others need not be waited for.

    Raises:
        DeviceFailed: the driver refused, or work has failed.
    """
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, popped = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuDeviceGet(ctypes.byref(device), int(number)))
    # The primary context is that of CUDA's runtime, of torch and of this library.
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    try:
        _check(driver.cuCtxPushCurrent_v2(context))
        try:
            _check(driver.cuCtxSynchronize())
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _check(status: int) -> None:
    if status != _CUDA_OK:
        raise DeviceFailed(f"the driver says {status}", fix="see CUresult in cuda.h", operation="iovsync")
