"""What looks like a torch tensor on a GPU, of which there are none where GPUs are in software."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace


class GpuStorage:
    """The storage of such a tensor; the address is among the first words of its object, as in torch.

    So is the length there: whichever word is taken for it, none is shorter than ``nbytes`` says.
    """

    device = SimpleNamespace(type="cuda")

    def __init__(self, address: int, nbytes: int) -> None:
        self._nbytes = nbytes
        self._object = (ctypes.c_uint64 * 12)(0, 0, address, *[(1 << 64) - 1] * 9)
        self._cdata = ctypes.addressof(self._object)

    def data_ptr(self) -> int:
        return self._object[2]

    def nbytes(self) -> int:
        return self._nbytes

    def move(self, address: int) -> None:
        """Get other memory, as by ``resize_``."""
        self._object[2] = address


class GpuTensor:
    """A dense one of bytes, which is all of its storage."""

    is_cuda = True
    is_quantized = False
    ndim = 1
    layout = "torch.strided"
    device = SimpleNamespace(type="cuda")

    def __init__(self, address: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.storage = GpuStorage(address, nbytes)

    def data_ptr(self) -> int:
        return self.storage.data_ptr()

    def numel(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1

    def untyped_storage(self) -> GpuStorage:
        return self.storage

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False
