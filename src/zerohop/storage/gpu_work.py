"""Waits for the work of GPUs, so that bytes that it writes are there before a file gets them."""

from __future__ import annotations

import ctypes
from typing import Final

from zerohop.errors import DeviceFailed

_CUDA_OK: Final = 0


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
        raise DeviceFailed(f"the driver says {status}", fix="see CUresult in cuda.h", operation="sync")
