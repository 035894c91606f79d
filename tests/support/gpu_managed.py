"""Managed memory of a GPU, made with the driver's own calls: zerohop takes none."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOR_ALL_STREAMS = 1


@contextlib.contextmanager
def managed_memory(nbytes: int, *, device: int = 0) -> Iterator[int]:
    """Its address; freed at the end."""
    driver, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    try:
        assert driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(nbytes), _FOR_ALL_STREAMS) == 0
        yield address.value
        assert driver.cuMemFree_v2(address) == 0
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        driver.cuDevicePrimaryCtxRelease_v2(device)
