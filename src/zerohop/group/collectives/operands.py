"""Checks the arrays of a call, and reduces and copies parts of them."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.face import Local, Memory, View
    from zerohop.group.collectives.scratch import Scratch

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
        if isinstance(self.flat, np.ndarray):
            with np.errstate(all="ignore"):
                _OF_NUMPY[operator](first.flat, second.flat, out=self.flat)
        else:
            import torch

            getattr(torch, _OF_TORCH[operator])(first.flat, second.flat, out=self.flat)
            synchronize(self.flat)

    def room(self, count: int, scratch: Scratch) -> Numbers:
        """Return elements of the same type on the same device, good until the end of the collective."""
        if isinstance(self.flat, np.ndarray):
            array, view = scratch.take(count * self.itemsize)
            return Numbers(array.view(self.flat.dtype), view, self.itemsize, self.dtype)
        flat = self.flat.new_empty(count)
        return Numbers(flat, scratch.view_of(flat), self.itemsize, self.dtype)


def numbers_of(name: str, x: Any, operator: str, view_of: Callable[[Local], Memory | View]) -> Numbers:
    """Return the elements of an argument.

    Raises:
        TypeError: it has none, or none that can be reduced.
        ValueError: they are not in order.
    """
    if is_tensor(x):
        check_order(name, x)
        _check_reducible_by_torch(x, operator)
        flat, dtype = x.detach().reshape(-1), str(x.dtype).removeprefix("torch.")
        synchronize(x)
        shown = flat if dtype == "bfloat16" or flat.device.type != "cpu" else flat.numpy()
        return Numbers(shown, view_of(flat), x.element_size(), dtype)
    if not isinstance(x, np.ndarray):
        what = f"{name} is a {type(x).__name__}, whose elements have no type"
        raise TypeError(f"{what}. Fix: pass an array of NumPy or a tensor, such as {name}.numpy().view(numpy.float32)")
    check_order(name, x)
    why, dtype = _judged(x.dtype, operator)
    if why:
        raise TypeError(f"{name}: {why}")
    return Numbers(x.reshape(-1), view_of(x), x.itemsize, dtype)


def check_order(name: str, x: Any) -> None:
    """Raise ValueError if an array or a tensor is not C-contiguous."""
    if isinstance(x, np.ndarray):
        if not x.flags.c_contiguous:
            raise ValueError(f"{name} is not C-contiguous. Fix: pass a copy, numpy.ascontiguousarray({name})")
    elif is_tensor(x) and not x.is_contiguous():
        raise ValueError(f"{name} is not contiguous. Fix: pass a copy, {name}.contiguous()")


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
    if dtype.kind == "c" and operator in ("min", "max"):
        return f"{dtype} has no order, so that there is no {operator}"
    try:
        same = not dtype.hasobject and _OF_NUMPY[operator](np.ones(1, dtype), np.ones(1, dtype)).dtype == dtype
    except (TypeError, ValueError):
        same = False
    return "" if same else f"{dtype} has no {operator} of its own type"


def _check_reducible_by_torch(x: Any, operator: str) -> None:
    dtype = x.dtype
    if dtype.is_complex and operator in ("min", "max"):
        raise TypeError(f"{dtype} has no order, so that there is no {operator}")
    if x.is_quantized or x.layout != sys.modules["torch"].strided:
        raise TypeError(f"a tensor of {dtype}, {x.layout} cannot be reduced")
    if dtype.itemsize == 1 and dtype.is_floating_point:
        raise TypeError(f"{dtype} has no {operator} of its own type")
