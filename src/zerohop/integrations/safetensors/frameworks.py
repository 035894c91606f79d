"""Makes the tensors that a load fills, in torch or numpy, and tells where their bytes are."""

from __future__ import annotations

import abc
import contextlib
import importlib
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.errors import Unsupported
from zerohop.integrations.safetensors.dtypes import DTYPES, PAIRED
from zerohop.integrations.safetensors.plan import PAGE
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


# The names that safetensors has for them, too.
_TORCH: Final = ("torch", "pt", "pytorch")
_NUMPY: Final = ("numpy", "np")
# Copies from which one kernel for all takes less time than the GPU's copies one by one, each of some 5 µs: the first
# call loads it, which took 16 ms.
_WORTH_A_KERNEL: Final = 512
# torch rounds the bytes of a tensor on a GPU up to a multiple of this.
_GRAIN: Final = 512
# torch cuts smaller sums of tensors out of blocks that it has in any case.
_WORTH_A_BLOCK: Final = 20 << 20


class Framework(abc.ABC):
    """Makes tensors of one library on one device.

    Attributes:
        device: the device as zerohop names it: ``"host"`` or ``"cuda:0"``.
    """

    device = "host"

    @abc.abstractmethod
    def check(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Raise Unsupported for a tensor that the library has no dtype for."""

    @abc.abstractmethod
    def empty(self, dtype: str, shape: Sequence[int], place: int | None = None) -> Any:
        """Return a tensor with memory of its own, whose bytes are undefined.

        On the host it begins ``place`` bytes after the start of a page, if that suits its elements, so that a disk can
        write to its pages; its memory is then up to a page longer than it is.
        """

    def out_of_memory(self, error: BaseException, said: str) -> BaseException | None:
        """Return the error that says it if ``error`` of ``empty`` means that no memory is left; None otherwise."""
        return MemoryError(said) if isinstance(error, MemoryError) else None

    def expect(self, sizes: list[int]) -> None:
        """Have memory at hand for tensors of so many bytes each, which ``empty`` makes next, where that saves time."""
        del sizes

    @abc.abstractmethod
    def flat(self, tensor: Any) -> Any:
        """Return the bytes of a tensor as one-dimensional array of bytes: numpy's on the host, or the library's."""

    @abc.abstractmethod
    def room(self, nbytes: int) -> Any:
        """Return memory on a GPU for bytes that pass through, as ``flat`` gives them; None: take that of a Context."""

    def scatter(self, targets: list[Any], sources: list[Any]) -> None:
        """Copy arrays of bytes into others of the same lengths."""
        for target, source in zip(targets, sources, strict=True):
            target[...] = source

    @abc.abstractmethod
    def begin(self) -> None:
        """Return when nothing that was begun earlier writes to the memory that was made."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Return when all that was scattered has arrived."""


class Numpy(Framework):
    """Makes numpy arrays; those of BF16 and F8 have the dtypes of ml_dtypes, if that is installed."""

    def check(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Do ``Framework.check``."""
        del shape
        if self._type(dtype) is None:
            said, fix = f"numpy has no {dtype}", _without(name)
            if DTYPES[dtype].torch:
                fix = f'load it with framework="torch", or {fix}'
            if DTYPES[dtype].numpy:
                said, fix = f"numpy has {dtype} with ml_dtypes alone", f"pip install ml_dtypes, or {fix}"
            raise _no_dtype(name, said, fix)

    def empty(self, dtype: str, shape: Sequence[int], place: int | None = None) -> Any:
        """Do ``Framework.empty``."""
        kind = np.dtype(self._type(dtype))
        if place is None or place % kind.itemsize:
            return np.empty(shape, kind)
        nbytes = nbytes_of(dtype, shape)
        memory = np.empty(nbytes + PAGE, np.uint8)
        skip = (place - memory.ctypes.data) % PAGE
        return memory[skip : skip + nbytes].view(kind).reshape(shape)

    def flat(self, tensor: Any) -> Any:
        """Do ``Framework.flat``."""
        return tensor.reshape(-1).view(np.uint8)

    def room(self, nbytes: int) -> Any:
        """Do ``Framework.room``."""
        del nbytes

    def begin(self) -> None:
        """Do ``Framework.begin``: numpy writes at once."""

    def finish(self) -> None:
        """Do ``Framework.finish``: numpy copies at once."""

    @staticmethod
    def _type(dtype: str) -> Any:
        """Return the dtype; None if there is none."""
        name = DTYPES[dtype].numpy
        if not name or hasattr(np, name):
            return getattr(np, name) if name else None
        try:
            return getattr(importlib.import_module("ml_dtypes"), name)
        except (ImportError, AttributeError):
            return None


class Torch(Framework):
    """Makes torch tensors on the host or on a GPU."""

    def __init__(self, device: Any) -> None:
        """Take what ``torch.device`` takes."""
        try:
            self._torch = importlib.import_module("torch")
        except ImportError:
            raise Unsupported(
                "torch is not installed", fix='pip install torch, or load with framework="numpy"', operation="load"
            ) from None
        self._place = _place(self._torch, device)
        self._on_host = self._place.type == "cpu"
        self.device = "host" if self._on_host else str(self._place)

    def check(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Do ``Framework.check``."""
        if self._type(dtype) is None:
            fix = _without(name)
            if DTYPES[dtype].torch:
                fix = f"install a newer torch, or {fix}"
            raise _no_dtype(name, f"torch {self._torch.__version__} has no {dtype}", fix)
        if dtype == PAIRED and (not shape or shape[-1] % 2):
            raise _no_dtype(name, f"torch has F4 in pairs alone, and the shape is {list(shape)}", _without(name))

    def empty(self, dtype: str, shape: Sequence[int], place: int | None = None) -> Any:
        """Do ``Framework.empty``."""
        kind = self._type(dtype)
        whole = shape
        if dtype == PAIRED:
            shape = (*shape[:-1], shape[-1] // 2)
        if place is None or not self._on_host or place % kind.itemsize:
            return self._torch.empty(tuple(shape), dtype=kind, device=self._place)
        memory = self._torch.empty(nbytes_of(dtype, whole) + PAGE, dtype=self._torch.uint8)
        skip = (place - memory.data_ptr()) % PAGE
        # Unlike a slice, this is a tensor that torch takes for no view of another.
        made = self._torch.empty(0, dtype=kind)
        return made.set_(memory.untyped_storage(), skip // kind.itemsize, tuple(shape))

    def expect(self, sizes: list[int]) -> None:
        """Do ``Framework.expect``: torch asks the driver once for all, and not for each tensor.

        torch keeps the block that is dropped here, and cuts the tensors from it.
        """
        whole = sum(-(-nbytes // _GRAIN) * _GRAIN for nbytes in sizes)
        if self._on_host or whole < _WORTH_A_BLOCK:
            return
        gpu = self._torch.cuda
        kept = gpu.memory_reserved(self._place) - gpu.memory_allocated(self._place)
        if kept < whole:
            # Where there is no such block, the tensors may still find room, and say it better if they do not.
            with contextlib.suppress(gpu.OutOfMemoryError):
                self._torch.empty(whole, dtype=self._torch.uint8, device=self._place)

    def out_of_memory(self, error: BaseException, said: str) -> BaseException | None:
        """Do ``Framework.out_of_memory``."""
        if isinstance(error, self._torch.cuda.OutOfMemoryError):
            return self._torch.cuda.OutOfMemoryError(said)  # type: ignore[no-any-return]  # torch's own class
        # On the host it raises an error of no class of its own.
        return MemoryError(said) if isinstance(error, RuntimeError) and "allocate memory" in str(error) else None

    def flat(self, tensor: Any) -> Any:
        """Do ``Framework.flat``."""
        flat = tensor.detach().reshape(-1).view(self._torch.uint8)
        return flat.numpy() if self._on_host else flat

    def room(self, nbytes: int) -> Any:
        """Do ``Framework.room``."""
        if self._on_host:
            return None
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._place)

    def scatter(self, targets: list[Any], sources: list[Any]) -> None:
        """Do ``Framework.scatter``: on a GPU with one kernel for all of them."""
        if self._on_host:
            super().scatter(targets, sources)
        elif targets:
            if len(targets) < _WORTH_A_KERNEL:
                super().scatter(targets, sources)
            else:
                self._torch._foreach_copy_(targets, sources)  # torch's optimizers use it; no public twin
            # Bytes of the next batch come by another stream than that of this kernel.
            self._torch.cuda.current_stream(self._place).synchronize()

    def begin(self) -> None:
        """Do ``Framework.begin``."""
        if not self._on_host:
            # torch gives memory out again while kernels of the same stream still write to it; files come by another.
            self._torch.cuda.current_stream(self._place).synchronize()

    def finish(self) -> None:
        """Do ``Framework.finish``."""
        if not self._on_host:
            self._torch.cuda.synchronize(self._place)

    def _type(self, dtype: str) -> Any:
        """Return the dtype; None if there is none."""
        return getattr(self._torch, DTYPES[dtype].torch or "none", None)


def framework_of(name: object, device: Any) -> Framework:
    """Return the framework of that name, for a device.

    Raises:
        ValueError: there is no such framework, or it has no such device.
        Unsupported: it is not installed, or finds no such GPU.
    """
    if not isinstance(name, str) or name not in (*_TORCH, *_NUMPY):
        raise ValueError(
            f'framework is "torch" or "numpy", not {shown(name)}; other libraries take numpy arrays, '
            "such as jax.numpy.asarray(array)"
        )
    if isinstance(device, str) and device in (*_TORCH, *_NUMPY):
        raise ValueError(f'device is "cpu" or "cuda:0", not {shown(device)}: pass framework={shown(device)}')
    if name in _TORCH:
        return Torch(device)
    if str(device) not in ("cpu", "host"):
        raise ValueError(
            f'numpy arrays are on the host: device is "cpu", not {shown(device)}; for a GPU pass framework="torch"'
        )
    return Numpy()


def _no_dtype(name: str, said: str, fix: str) -> Unsupported:
    return Unsupported(f"tensor {shown(name)}: {said}", fix=fix, operation="load")


def _without(name: str) -> str:
    return f"leave the tensor out: names=lambda name: name != {shown(name)}"


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].bits // 8


def _place(torch: Any, device: Any) -> Any:
    """Return the torch.device, with its index."""
    try:
        place = torch.device("cpu" if device == "host" else device)
    except (RuntimeError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(f'device is "cpu" or "cuda:0", not {shown(device)}: {said}') from None
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f'device is "cpu" or "cuda:0", not {shown(device)}')
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        raise Unsupported(
            f"torch {torch.__version__} finds {count} GPUs, and {shown(device)} is none of them",
            fix='load to "cpu", or install a torch for the GPUs of this machine',
            operation="load",
        )
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    return place
