"""Reads and writes the bytes of memory, and exports them to other libraries without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zerohop._native import NativeError
from zerohop.config.checks import as_int
from zerohop.core.base.plain_bytes import plain_bytes
from zerohop.core.base.resource import NotCopyable
from zerohop.core.memory import arrays
from zerohop.core.memory.elements import bytes_of
from zerohop.core.memory.registration import Export
from zerohop.core.runtime.devices import HOST
from zerohop.errors import from_native
from zerohop.shown import shown

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import CapsuleType

    from zerohop._native import BlockWatch
    from zerohop.core.memory.elements import Elements
    from zerohop.core.memory.memory_core import MemoryCore
    from zerohop.core.memory.registration import Registration


_MAX_BYTE: Final = 255


class Contents(NotCopyable):
    """Holds a range of registered bytes, with the methods that touch them: the base of Memory and View."""

    # Each transfer reads _routes, _block and _offset. They are slots of this class, so that reading them needs no call.
    __slots__ = ("_block", "_core", "_elements", "_layout", "_offset", "_registration", "_routes", "nbytes")

    _core: MemoryCore
    _registration: Registration
    # Routes by RemoteBuffer key; their class is in lanes/link.py.
    _routes: dict[bytes, Any]
    # Tells when another library has moved the bytes; None: it cannot.
    _block: BlockWatch | None
    # Describes the elements that arrays of other libraries show; None: bytes.
    _elements: Elements | None
    # How the elements of the array lie that the memory was made of (layouts.py).
    _layout: bytes
    _offset: int
    nbytes: int

    def _check_open(self) -> None:
        """Raise Closed if the Memory is closed, or its Context is."""
        raise NotImplementedError

    def _kept(self) -> object:
        """Return the object that the Memory keeps alive."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        """Return the name of the device that has the memory: ``"host"``, ``"sim:0"``, ..."""
        return self._registration.device

    @property
    def address(self) -> int:
        """Return the address of the first byte; the CPU must not touch the address of a device's memory."""
        return self._registration.address + self._offset

    @property
    def readonly(self) -> bool:
        """Tell whether transfers refuse to write to the range."""
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        """Return the type of the elements that ``Context.alloc`` was given; "uint8" of all else, and of every View."""
        return self._shown().dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the lengths of the axes, in elements."""
        return self._shown().shape

    def _shown(self) -> Elements:
        """Return what arrays of other libraries show."""
        return bytes_of(self.nbytes) if self._elements is None else self._elements

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the memory as an array, without a copy. The pages stay as long as the array, also after ``close()``.

        It has the type and shape that ``Context.alloc`` was given; all else is an array of bytes.

        The array of a torch tensor on the host is good until torch moves the tensor's bytes (``share_memory_()``, or a
        ``multiprocessing`` queue).

        Raises:
            Unsupported: the memory is on a device, where the CPU cannot touch it; or NumPy lacks the type.
            Closed: the Memory is closed.
        """
        self._check_open()
        return arrays.numpy_of(self, self._shown(), self._export)

    def read_bytes(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return a copy of part of the range; a device's driver copies after the copies that are queued there.

        Raises:
            TypeError: ``offset`` or ``nbytes`` is no integer.
            ValueError: the part does not lie within the range.
            DeviceFailed: the driver could not copy.
            AccessDenied: the memory is gone.
            Closed: the Memory is closed.
        """
        offset, nbytes = self._part(offset, nbytes)
        try:
            return self._registration.region.read(self._offset + offset, nbytes)
        except NativeError as error:
            raise from_native(*error.args, operation="read_bytes") from None

    def write_bytes(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Overwrite part of the range, on a device by its driver. On return the bytes are in place.

        Raises:
            TypeError: ``offset`` is no integer; ``data`` is not bytes, nor another object with the buffer protocol.
            ValueError: the part does not lie within the range, or the memory is read-only.
            DeviceFailed: the driver could not copy.
            AccessDenied: the memory is gone.
            Closed: the Memory is closed.
        """
        raw = plain_bytes("data", data)
        offset, _ = self._part(offset, len(raw))
        if self.readonly:
            raise ValueError("this memory is read-only")
        try:
            self._registration.region.write(self._offset + offset, raw)
        except NativeError as error:
            raise from_native(*error.args, operation="write_bytes") from None

    def fill(self, value: int = 0) -> None:
        """Set every byte of the range to ``value``, an int from 0 to 255; raises what ``write_bytes`` raises."""
        number = as_int("value", value)
        if not 0 <= number <= _MAX_BYTE:
            raise ValueError(f"value must be from 0 to {_MAX_BYTE}, not {shown(number)}")
        self.write_bytes(0, bytes([number]) * self.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Describe a device's memory to libraries that know this protocol; host memory has no such attribute."""
        if self.device == HOST:
            raise AttributeError("host memory has no __cuda_array_interface__; use numpy()")
        elements = self._shown()
        dtype = elements.numpy_dtype
        return {
            "data": (self.address, self.readonly),
            "shape": (self.nbytes,) if dtype is None else elements.shape,
            "typestr": "|u1" if dtype is None else dtype.str,
            "strides": None,
            "version": 3,
        }

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Return the memory as a DLPack tensor without a copy: of the type and shape that ``Context.alloc`` was given.

        ``torch.from_dlpack(memory)`` calls this. All else is a one-dimensional tensor of uint8: give it its type and
        shape with ``tensor.view(dtype).view(shape)``. The memory stays as long as the tensor, and unless you close it,
        so does the Memory; that of a torch tensor on the host is good until torch moves its bytes, as in ``numpy()``.
        DLPack documents the arguments.

        Raises:
            BufferError: the memory is on a simulated device, or is read-only and the consumer knows no such tensors.
            Closed: the Memory is closed.
        """
        self._check_open()
        # This range is kept as well, so that registering the tensor finds its registration when nobody else keeps it.
        owner = lambda: (self._export(), self)  # noqa: E731 - two lines for nothing
        return arrays.dlpack_of(self, self._shown(), owner, max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and number of the device as DLPack counts them; raise BufferError for a simulated device."""
        return arrays.dlpack_device(self.device)

    def _part(self, offset: int, nbytes: int | None) -> tuple[int, int]:
        """Do ``_within`` for memory that must be open."""
        self._check_open()
        return self._within(offset, nbytes)

    def _within(self, offset: int, nbytes: int | None) -> tuple[int, int]:
        """Return offset and length of a part as plain ints; raise ValueError if it does not lie within the range."""
        # ctypes and native calls take no integers of numpy's.
        offset = as_int("offset", offset)
        nbytes = self.nbytes - offset if nbytes is None else as_int("nbytes", nbytes)
        if not 0 <= offset <= self.nbytes or not 0 <= nbytes <= self.nbytes - offset:
            raise ValueError(f"bytes {shown(offset)} to {shown(offset + nbytes)} do not lie within {self.nbytes}")
        return offset, nbytes

    def _export(self) -> Export:
        """Return an object that keeps the pages for an array that shows them."""
        return Export(self._registration, self._kept(), self._core.retention.drain)
