"""Makes the tensors that a load fills, in torch or numpy, and tells where their bytes are."""

from __future__ import annotations

import abc
import importlib
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop.errors import Unsupported
from zerohop.integrations.safetensors.dtypes import DTYPES, OF_NUMPY, OF_TORCH
from zerohop.integrations.safetensors.plan import PAGE
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_PAIRED: Final = "F4"
# Copies from which one kernel for all takes less time than the GPU's copies one by one: it has to be loaded first.
_WORTH_A_KERNEL: Final = 64


class Framework(abc.ABC):
    """Makes tensors of one library on one device.

    Attributes:
        device: the device as zerohop names it: ``"host"`` or ``"cuda:0"``.
    """

    device = "host"

    @abc.abstractmethod
    def check(self, dtype: str) -> None:
        """Raise Unsupported for a dtype that the library does not have."""

    @abc.abstractmethod
    def empty(self, dtype: str, shape: Sequence[int], place: int | None = None) -> Any:
        """Return a tensor with memory of its own, whose bytes are undefined.

        On the host it begins ``place`` bytes after the start of a page, if that suits its elements, so that a disk can
        write to its pages; its memory is then up to a page longer than it is.
        """

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

    def check(self, dtype: str) -> None:
        """Do ``Framework.check``."""
        self._type(dtype)

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
        name = DTYPES[dtype].numpy
        if name and hasattr(np, name):
            return getattr(np, name)
        try:
            return getattr(importlib.import_module("ml_dtypes"), name or "none")
        except (ImportError, AttributeError):
            raise Unsupported(
                f"numpy has no {dtype}", fix='pip install ml_dtypes, or load with framework="torch"', operation="load"
            ) from None


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

    def check(self, dtype: str) -> None:
        """Do ``Framework.check``."""
        self._type(dtype)

    def empty(self, dtype: str, shape: Sequence[int], place: int | None = None) -> Any:
        """Do ``Framework.empty``."""
        kind = self._type(dtype)
        whole = shape
        if dtype == _PAIRED:
            if not shape or shape[-1] % 2:
                raise Unsupported(
                    f"torch has F4 in pairs only, and the shape is {list(shape)}",
                    fix="leave the tensor out with names=",
                    operation="load",
                )
            shape = (*shape[:-1], shape[-1] // 2)
        if place is None or not self._on_host or place % kind.itemsize:
            return self._torch.empty(tuple(shape), dtype=kind, device=self._place)
        memory = self._torch.empty(nbytes_of(dtype, whole) + PAGE, dtype=self._torch.uint8)
        skip = (place - memory.data_ptr()) % PAGE
        # Unlike a slice, this is a tensor that torch takes for no view of another.
        made = self._torch.empty(0, dtype=kind)
        return made.set_(memory.untyped_storage(), skip // kind.itemsize, tuple(shape))

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
        found = getattr(self._torch, DTYPES[dtype].torch or "none", None)
        if found is None:
            raise Unsupported(
                f"torch {self._torch.__version__} has no {dtype}",
                fix="leave the tensor out with names=, or install a newer torch",
                operation="load",
            )
        return found


def framework_of(name: object, device: Any) -> Framework:
    """Return the framework of that name, for a device.

    Raises:
        ValueError: there is no such framework, or it has no such device.
        Unsupported: it is not installed, or finds no such GPU.
    """
    if name == "torch":
        return Torch(device)
    if name != "numpy":
        raise ValueError(f'framework is "torch" or "numpy", not {shown(name)}')
    if str(device) not in ("cpu", "host"):
        raise ValueError(f'numpy arrays are on the host: device is "cpu", not {shown(device)}')
    return Numpy()


def described(tensor: Any) -> tuple[str, tuple[int, ...], Any]:
    """Return the dtype of a tensor as the format names it, its shape there, and its bytes, which alias it.

    Raises:
        TypeError: it is no array of numpy or torch, or the format has no such dtype.
        ValueError: it is not contiguous, or its bytes are not its values.
    """
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError("a masked array, whose mask would be lost: pass x.data, or x.filled()")
    if isinstance(tensor, np.ndarray):
        tensor = np.asarray(tensor)  # a np.matrix stays two-dimensional whatever is done to it
        dtype = OF_NUMPY.get(tensor.dtype.name) if tensor.dtype.isnative else None
        contiguous, flat = tensor.flags.c_contiguous, Numpy().flat
    elif type(tensor).__module__.startswith("torch"):
        dtype = OF_TORCH.get(str(tensor.dtype).removeprefix("torch."))
        if str(tensor.layout) != "torch.strided":
            raise TypeError(f"a tensor of layout {tensor.layout}: pass tensor.to_dense()")
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("torch has put off to negate it: pass tensor.resolve_conj().resolve_neg()")
        contiguous, flat = tensor.is_contiguous(), Torch(tensor.device).flat
    else:
        raise TypeError(f"a tensor is an array of numpy or torch, not {shown(type(tensor).__name__)}")
    if dtype is None:
        raise TypeError(f"safetensors has no dtype for {shown(tensor.dtype)}")
    if not contiguous:
        raise ValueError("the tensor is not contiguous: pass tensor.contiguous(), or numpy.ascontiguousarray(tensor)")
    shape = tuple(tensor.shape)
    if dtype == _PAIRED:
        if not shape:
            raise ValueError("a pair of F4 needs a dimension: pass tensor.reshape(1)")
        shape = (*shape[:-1], shape[-1] * 2)
    return dtype, shape, flat(tensor)


def frameworks_of(tensors: Iterable[Any]) -> list[Framework]:
    """Return the frameworks of tensors that ``described`` takes, each with one of the devices that these are on."""
    places = {tensor.device for tensor in tensors if not isinstance(tensor, np.ndarray)}
    return [Torch(place) for place in places]


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * DTYPES[dtype].bits // 8


def _place(torch: Any, device: Any) -> Any:
    """Return the torch.device, with its index."""
    try:
        place = torch.device("cpu" if device == "host" else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device is "cpu" or "cuda:0", not {shown(device)}: {error}') from None
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
