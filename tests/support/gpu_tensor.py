"""What looks like a torch tensor on a GPU, of which there are none where GPUs are in software."""

from __future__ import annotations

from types import SimpleNamespace


class GpuTensor:
    """A dense one of bytes, at an address."""

    is_cuda = True
    layout = "torch.strided"
    device = SimpleNamespace(type="cuda")

    def __init__(self, address: int, nbytes: int) -> None:
        self._address = address
        self.nbytes = nbytes

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1

    def untyped_storage(self) -> object:
        raise NotImplementedError

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False
