"""Memory of a GPU's memory pools, made with the driver's own calls: zerohop allocates from none."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_PINNED = 1
_FILE_DESCRIPTOR = 1
_ON_A_DEVICE = 1


class _Properties(ctypes.Structure):
    _fields_ = (
        ("allocation", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 72),
    )


class GpuPool:
    """One pool on a device. Whoever uses it has registered memory of that device, so that the driver has started."""

    def __init__(self, *, device: int = 0, shareable: bool = True) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._device = device
        self._context = ctypes.c_void_p()
        self._allocated: list[int] = []
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        handle_types = _FILE_DESCRIPTOR if shareable else 0
        properties = _Properties(_PINNED, handle_types, _ON_A_DEVICE, device)
        self._pool = ctypes.c_void_p()
        self._check(self._driver.cuMemPoolCreate(ctypes.byref(self._pool), ctypes.byref(properties)))

    def alloc(self, nbytes: int) -> tuple[int, int, str]:
        """As `Context.register` takes it."""
        address = ctypes.c_uint64()
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            nbytes_, stream = ctypes.c_size_t(nbytes), ctypes.c_void_p()
            self._check(self._driver.cuMemAllocFromPoolAsync(ctypes.byref(address), nbytes_, self._pool, stream))
            self._check(self._driver.cuCtxSynchronize())
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self._allocated.append(address.value)
        return address.value, nbytes, f"cuda:{self._device}"

    def free(self, address: int) -> None:
        self._allocated.remove(address)
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            self._check(self._driver.cuMemFree_v2(ctypes.c_uint64(address)))
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for address in list(self._allocated):
            self.free(address)
        self._check(self._driver.cuMemPoolDestroy(self._pool))
        self._check(self._driver.cuDevicePrimaryCtxRelease_v2(self._device))

    def _check(self, result: int) -> None:
        assert result == 0, f"the driver says {result}"
