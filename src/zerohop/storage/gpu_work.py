"""Waits for the work of GPUs, so that bytes that it writes are there before a file gets them."""

from __future__ import annotations

import ctypes
from typing import Final

from zerohop.core.face import HOST
from zerohop.errors import DeviceFailed, Unsupported

_CUDA_OK: Final = 0
# Streams of simulated devices are for tests, which wait for them by themselves.
_NOTHING_QUEUED: Final = (HOST, "sim")


def synchronize(name: str) -> None:
    """Wait until a device has done what streams of this process have told it; host memory has no such work.

    Raises:
        DeviceFailed: the driver refused, or work has failed.
        Unsupported: the device is neither a GPU of NVIDIA nor simulated.
    """
    kind, _, number = name.partition(":")
    if kind in _NOTHING_QUEUED:
        return
    if kind != "cuda":
        raise Unsupported(
            f"this version cannot wait for the work of {name}",
            fix="wait for it yourself, as hipDeviceSynchronize() does, before files are written from its memory",
            operation="sync",
        )
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
