"""Checks the arrays of a call, and reduces and copies parts of them."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from zerohop.group.collectives.tags import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Memory, View
    from zerohop.group.collectives.scratch import Scratch

    Octets: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_OF_NUMPY: Final[dict[str, Any]] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
_OF_TORCH: Final = {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}
# Bytes that are reduced at once, before other work of the control thread gets its turn.
AT_ONCE: Final = 1 << 20


class Numbers:
    """Holds the elements of an array or a part of one, and the memory that messages use for it.

    Attributes:
        flat: the elements, an array of NumPy or a tensor.
        view: their memory.
        itemsize: bytes of an element.
        dtype: the name of their type.
    """

    __slots__ = ("dtype", "flat", "itemsize", "view")

    def __init__(self, flat: Any, view: Memory | View, itemsize: int, dtype: str) -> None:
        self.flat = flat
        self.view = view
        self.itemsize = itemsize
        self.dtype = dtype

    def __len__(self) -> int:
        return self.view.nbytes // self.itemsize

    def part(self, start: int, stop: int) -> Numbers:
        """Return the elements from ``start`` to ``stop``."""
        each = self.itemsize
        return Numbers(self.flat[start:stop], self.view[start * each : stop * each], each, self.dtype)

    def copy_from(self, other: Numbers) -> None:
        """Overwrite the elements with as many others."""
        if self.view.address == other.view.address:
            return
        if isinstance(self.flat, np.ndarray):
            np.copyto(self.flat, other.flat)
        else:
            self.flat.copy_(other.flat)
            synchronize(self.flat)

    def reduce(self, operator: str, first: Numbers, second: Numbers) -> None:
        """Set the elements to those of ``first`` with those of ``second``, either of which they may be."""
        _reduce(self.flat, operator, first.flat, second.flat)

    def reduce_bytes(self, operator: str, part: slice, slots: list[Octets]) -> None:
        """Set the elements to those in one part of each array of bytes of the host; the first comes first.

        The host computes, also for elements of a GPU: they are few, and each part would take a copy and a kernel.
        """
        here = self.flat
        first, *others = (self._elements_in(slot[part]) for slot in slots)
        if not isinstance(here, np.ndarray) and here.device.type != "cpu":
            here = first.new_empty(first.shape)
        for other in others:
            _reduce(here, operator, first, other)
            first = here
        if here is not self.flat:
            self.flat.copy_(here)
            synchronize(self.flat)

    def _elements_in(self, octets: Octets) -> Any:
        """Return bytes as elements of this type, on the host."""
        if isinstance(self.flat, np.ndarray):
            return octets.view(self.flat.dtype)
        import torch

        return torch.from_numpy(octets).view(self.flat.dtype)

    def room(self, count: int, scratch: Scratch) -> Numbers:
        """Return elements of the same type on the same device, good until the end of the collective."""
        if isinstance(self.flat, np.ndarray):
            array, view = scratch.take(count * self.itemsize)
            return Numbers(array.view(self.flat.dtype), view, self.itemsize, self.dtype)
        flat = self.flat.new_empty(count)
        return Numbers(flat, scratch.view_of(flat), self.itemsize, self.dtype)


def _reduce(out: Any, operator: str, first: Any, second: Any) -> None:
    if isinstance(out, np.ndarray):
        with np.errstate(all="ignore"):
            _OF_NUMPY[operator](first, second, out=out)
    else:
        import torch

        getattr(torch, _OF_TORCH[operator])(first, second, out=out)
        synchronize(out)


def numbers_of(name: str, x: Any, operator: str, view_of: Callable[[Local], Memory | View]) -> Numbers:
    """Return the elements of an argument.

    Raises:
        TypeError: it has none, or none that can be reduced.
        ValueError: they are not in order.
    """
    if is_tensor(x):
        check_order(name, x)
        why = _why_not_torch(x.dtype, x.device.type, operator)
        if why:
            raise TypeError(f"{name}: {why}")
        flat, dtype = x.detach().reshape(-1), _torch_name(x.dtype)
        synchronize(x)
        shown = flat if dtype == "bfloat16" or flat.device.type != "cpu" else flat.numpy()
        return Numbers(shown, view_of(flat), x.element_size(), dtype)
    if not isinstance(x, np.ndarray):
        what = f"{name} is a {type(x).__name__}, whose elements have no type"
        raise TypeError(f"{what}. Fix: pass an array of NumPy or a tensor, such as {name}.numpy().view(numpy.float32)")
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored. Fix: {name}.filled(...)")
    check_order(name, x)
    why, dtype = _judged(x.dtype, operator)
    if why:
        raise TypeError(f"{name}: {why}")
    # A matrix would keep two dimensions.
    return Numbers(np.asarray(x).reshape(-1), view_of(x), x.itemsize, dtype)


def check_order(name: str, x: Any) -> None:
    """Raise an error if the memory of an array or a tensor does not have its elements in C order."""
    if isinstance(x, np.ndarray):
        if not x.flags.c_contiguous:
            raise ValueError(f"{name} is not C-contiguous. Fix: pass a copy, numpy.ascontiguousarray({name})")
    elif is_tensor(x):
        if x.layout != sys.modules["torch"].strided:
            raise TypeError(f"{name} is a tensor of layout {x.layout}. Fix: pass {name}.to_dense()")
        if x.is_quantized:
            raise TypeError(f"{name} is a quantized tensor. Fix: pass {name}.int_repr()")
        if x.is_conj() or x.is_neg():
            fix = f"pass a copy, {name}.resolve_conj().resolve_neg().contiguous()"
            raise ValueError(f"{name} is a conjugate or a negative, whose memory has other values. Fix: {fix}")
        if not x.is_contiguous():
            raise ValueError(f"{name} is not contiguous. Fix: pass a copy, {name}.contiguous()")


def check_writable(name: str, x: Any, view: Memory | View, fix: str = "") -> None:
    """Raise ValueError if an argument must not be written to."""
    if view.readonly:
        raise ValueError(f"{name} is read-only, and would be written to{fix}")
    if is_tensor(x) and x.requires_grad and sys.modules["torch"].is_grad_enabled():
        text = f"{name} requires a gradient, and would be written to without autograd's knowledge"
        raise ValueError(f"{text}. Fix: pass {name}.detach(), or call this under torch.no_grad()")


def check_overlap(x: Memory | View, out: Memory | View, own: int | None = None, allowed: str = "") -> None:
    """Raise ValueError if ``x`` and ``out`` share memory, because what is received would change what is still read.

    Args:
        x: what is read.
        out: what is written.
        own: the only place of the shorter one in the longer one where they may share it, in bytes; None: nowhere.
        allowed: says what that place is.
    """
    if x.device != out.device or not x.nbytes or not out.nbytes:
        return
    if x.address >= out.address + out.nbytes or out.address >= x.address + x.nbytes:
        return
    longer, shorter = (x, out) if x.nbytes > out.nbytes else (out, x)
    if own is None or shorter.address - longer.address != own:
        raise ValueError(f"x and out share memory. Fix: pass memory of its own as out, or a copy of x{allowed}")


def is_tensor(x: Any) -> bool:
    """Tell whether an argument is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def synchronize(tensor: Any) -> None:
    """Wait for the work that is queued for a tensor on this thread's stream of its GPU."""
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()


def copy_bytes(target: Memory | View, source: Memory | View) -> None:
    """Copy between memory of the host, or few bytes of any device."""
    if target.nbytes == 0 or (target.address, target.device) == (source.address, source.device):
        return
    if target.device == source.device == "host":
        np.copyto(bytes_of(target), bytes_of(source))
    else:
        target.write_bytes(0, source.read_bytes())


def put_bytes(source: Memory | View, octets: Octets) -> None:
    """Copy memory of any device into the first bytes of an array.

    Raises:
        Closed, AccessDenied, DeviceFailed: it is gone, or may have been when it was read.
    """
    if source.nbytes:
        octets[: source.nbytes] = np.frombuffer(source.read_bytes(), np.uint8)
        source.read_bytes(0, 0)  # raises if the bytes have moved meanwhile


def take_bytes(target: Memory | View, octets: Octets) -> None:
    """Copy as many first bytes of an array as there is room for into memory of any device; raise as ``put_bytes``."""
    if target.nbytes:
        target.write_bytes(0, octets[: target.nbytes].tobytes())
        target.read_bytes(0, 0)  # raises if the bytes have moved meanwhile


def take_parts(target: Memory | View, part: slice, slots: list[Octets]) -> None:
    """Copy one part of each array into memory of any device, one behind the other; raise as ``put_bytes``."""
    take_bytes(target, np.concatenate([slot[part] for slot in slots]))


def bytes_of(view: Memory | View) -> np.ndarray[Any, Any]:
    """Return memory of the host as an array of bytes."""
    return view[:].numpy()


@functools.lru_cache(maxsize=256)
def _judged(dtype: np.dtype[Any], operator: str) -> tuple[str, str]:
    """Return why elements of this type cannot be reduced, empty if they can, and the name of the type."""
    return _why_not(dtype, operator), dtype.name


def _why_not(dtype: np.dtype[Any], operator: str) -> str:
    if not dtype.isnative:
        return f"{dtype} has another byte order than this machine. Fix: x.astype(x.dtype.newbyteorder('='))"
    if dtype.name not in TYPES:
        fix = "reduce its numbers, such as x.view(numpy.int64), if their result is what you mean"
        return f"{dtype} cannot be reduced. Fix: {fix}"
    if dtype.kind == "c" and operator in ("min", "max"):
        return f"{dtype} has no order, so that there is no {operator}"
    try:
        same = _OF_NUMPY[operator](np.ones(1, dtype), np.ones(1, dtype)).dtype == dtype
    except (TypeError, ValueError):
        same = False
    return "" if same else f"{dtype} has no {operator} of its own type"


def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=256)
def _why_not_torch(dtype: Any, device: str, operator: str) -> str:
    """Return why tensors of this type cannot be reduced, empty if they can."""
    if dtype.is_complex and operator in ("min", "max"):
        return f"{dtype} has no order, so that there is no {operator}"
    if _torch_name(dtype) not in TYPES or (dtype.itemsize == 1 and dtype.is_floating_point):
        return f"{dtype} cannot be reduced. Fix: convert it to a type that can, such as torch.float32"
    if device == "cpu" and dtype != sys.modules["torch"].bfloat16:
        return ""  # NumPy does it
    import torch

    try:
        one = torch.ones(1, dtype=dtype, device=device)
        getattr(torch, _OF_TORCH[operator])(one, one)
    except RuntimeError:
        return f"{dtype} has no {operator} on {device}"
    return ""
