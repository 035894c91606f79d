"""Virtual memory of a GPU in several allocations that follow one another, as PyTorch's expandable segments have it.

Made with the driver's own calls: zerohop allocates none.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_PINNED = 1
_FILE_DESCRIPTOR = 1
_ON_A_DEVICE = 1
_READ_AND_WRITE = 3
_MINIMUM = 0


class _Properties(ctypes.Structure):
    _fields_ = (
        ("allocation", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 16),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int))


class GpuSegments:
    """Addresses for ``count`` segments of the smallest size that the driver has, which are mapped one by one."""

    def __init__(self, count: int, *, device: int = 0, shareable: bool = True, mapped: bool = True) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._device = device
        handle_types = _FILE_DESCRIPTOR if shareable else 0
        self._properties = _Properties(_PINNED, handle_types, _ON_A_DEVICE, device)
        self._mapped: set[int] = set()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device))
        granularity, address = ctypes.c_size_t(), ctypes.c_uint64()
        properties = ctypes.byref(self._properties)
        self._check(self._driver.cuMemGetAllocationGranularity(ctypes.byref(granularity), properties, _MINIMUM))
        self.segment = granularity.value
        self._reserved = ctypes.c_size_t(count * self.segment)
        zero = ctypes.c_uint64(0)
        self._check(
            self._driver.cuMemAddressReserve(ctypes.byref(address), self._reserved, ctypes.c_size_t(0), zero, zero)
        )
        self.address = address.value
        for index in range(count if mapped else 0):
            self.map(index)

    def part(self, start: int, stop: int) -> tuple[int, int, str]:
        """A range of it, as `Context.register` takes it."""
        return self.address + start, stop - start, f"cuda:{self._device}"

    def map(self, index: int) -> None:
        handle, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
        size, address = ctypes.c_size_t(self.segment), self._at(index)
        self._check(self._driver.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(self._properties), zero))
        self._check(self._driver.cuMemMap(address, size, ctypes.c_size_t(0), handle, zero))
        self._check(self._driver.cuMemRelease(handle))
        access = _Access(_ON_A_DEVICE, self._device, _READ_AND_WRITE)
        self._check(self._driver.cuMemSetAccess(address, size, ctypes.byref(access), ctypes.c_size_t(1)))
        self._mapped.add(index)

    def unmap(self, index: int) -> None:
        self._mapped.remove(index)
        self._check(self._driver.cuMemUnmap(self._at(index), ctypes.c_size_t(self.segment)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for index in list(self._mapped):
            self.unmap(index)
        self._check(self._driver.cuMemAddressFree(ctypes.c_uint64(self.address), self._reserved))
        self._check(self._driver.cuDevicePrimaryCtxRelease_v2(self._device))

    def _at(self, index: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.address + index * self.segment)

    def _check(self, result: int) -> None:
        assert result == 0, f"the driver says {result}"
