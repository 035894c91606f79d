"""Exports memory as arrays and tensors of other libraries, without a copy."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from zerohop._native import array_over
from zerohop.core.runtime.devices import HOST
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import CapsuleType

    from zerohop.core.memory.elements import Elements

# DLPack's numbers for kinds of devices.
_DLPACK: Final = {HOST: 1, "cuda": 2, "hip": 10}
# The first version of DLPack in which a tensor can be read-only.
_KNOWS_READ_ONLY: Final = 1


class Range(Protocol):
    """Describes the Memory or View whose bytes are exported."""

    nbytes: int

    @property
    def device(self) -> str:
        """Return the name of the device."""

    @property
    def address(self) -> int:
        """Return the address of the first byte."""

    @property
    def readonly(self) -> bool:
        """Tell whether the bytes must not be written."""


def numpy_of(view: Range, elements: Elements, owner: Callable[[], object]) -> np.ndarray[Any, Any]:
    """Return the array that ``numpy()`` gives; ``owner()`` returns the object that keeps the pages."""
    if view.device != HOST:
        raise Unsupported(f"the CPU cannot touch memory of {view.device}", fix="copy it with read_bytes()")
    dtype = elements.numpy_dtype
    if dtype is None:
        raise Unsupported(
            f"NumPy has no {elements.dtype}", fix="take torch.from_dlpack(memory), or the bytes: memory[:].numpy()"
        )
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    exported = (ctypes.c_ubyte * view.nbytes).from_address(view.address)
    # The array's base keeps the owner of the pages alive. A ctypes array takes any attribute; its stubs do not say so.
    exported._zerohop_keep = owner()  # type: ignore[attr-defined]
    array = np.frombuffer(memoryview(exported), dtype).reshape(elements.shape)
    array.flags.writeable = not view.readonly
    return array


def dlpack_device(device: str) -> tuple[int, int]:
    """Return a device's type and number as DLPack counts them; raise BufferError if DLPack has none."""
    kind, _, number = device.partition(":")
    if kind not in _DLPACK:
        raise BufferError(f"memory of {device} is none that other libraries know. Fix: copy it with read_bytes()")
    return _DLPACK[kind], int(number or 0)


def dlpack_of(
    view: Range,
    elements: Elements,
    owner: Callable[[], object],
    max_version: tuple[int, int] | None,
    **wanted: Any,
) -> CapsuleType:
    """Return the capsule that ``__dlpack__`` gives; ``owner()`` returns the object that keeps the pages."""
    device_type, device = dlpack_device(view.device)
    readonly = view.readonly
    if readonly and (max_version or (0, 0))[0] < _KNOWS_READ_ONLY:
        raise BufferError("this memory is read-only, and the library asks for a tensor that is not. Fix: copy it")
    array: Any = array_over(
        view.address, elements.shape, elements.code, elements.bits, device_type, device, readonly, owner()
    )
    capsule: CapsuleType = array.__dlpack__(
        **({} if max_version is None else {"max_version": max_version}),
        **{name: value for name, value in wanted.items() if value is not None},
    )
    return capsule
