"""Tells what a tensor that is to be saved is in the format: its dtype, its shape, and where its bytes are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zerohop.integrations.safetensors.dtypes import OF_NUMPY, OF_TORCH, PAIRED
from zerohop.integrations.safetensors.frameworks import Numpy, Torch
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zerohop.integrations.safetensors.frameworks import Framework


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
    elif (torch := sys.modules.get("torch")) is not None and isinstance(tensor, torch.Tensor):
        tensor = _plain(torch, tensor)
        dtype = OF_TORCH.get(str(tensor.dtype).removeprefix("torch."))
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("torch has put off to negate it: pass tensor.resolve_conj().resolve_neg()")
        contiguous, flat = tensor.is_contiguous(), Torch(tensor.device).flat
    elif isinstance(tensor, Mapping):
        raise TypeError(
            f"a tensor is an array of numpy or torch, not {shown(type(tensor).__name__)}: "
            "pass its tensors by names of their own"
        )
    else:
        raise TypeError(
            f"a tensor is an array of numpy or torch, not {shown(type(tensor).__name__)}: pass numpy.asarray(x)"
        )
    if dtype is None:
        raise TypeError(f"safetensors has no dtype for {shown(tensor.dtype)}{_instead(tensor)}")
    if not contiguous:
        raise ValueError("the tensor is not contiguous: pass tensor.contiguous(), or numpy.ascontiguousarray(tensor)")
    shape = tuple(tensor.shape)
    if dtype == PAIRED:
        if not shape:
            raise ValueError("a pair of F4 needs a dimension: pass tensor.reshape(1)")
        shape = (*shape[:-1], shape[-1] * 2)
    return dtype, shape, flat(tensor)


def _plain(torch: Any, tensor: Any) -> Any:
    """Return a tensor of torch without its subclass, which shares its memory.

    Raises:
        TypeError: it has no bytes of its own, or only its class knows where they are.
    """
    kind = type(tensor)
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"a tensor of layout {tensor.layout}: pass tensor.to_dense()")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        plain = "tensor.full_tensor()" if hasattr(tensor, "full_tensor") else "a plain tensor of them"
        raise TypeError(f"a {kind.__name__} keeps its values elsewhere: pass {plain}")
    if torch.nn.parameter.is_lazy(tensor):
        raise TypeError(f"a {kind.__name__} has no values yet: call the module once before")
    if tensor.device.type == "meta":
        raise TypeError("a tensor of the device meta has no bytes")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a tensor of the device {tensor.device}, which is not reached: pass tensor.cpu()")
    return tensor if kind is torch.Tensor else tensor.detach().as_subclass(torch.Tensor)


def _instead(tensor: Any) -> str:
    """Return what to type for an array of a dtype that the format has not."""
    if isinstance(tensor, np.ndarray) and not tensor.dtype.isnative:
        return ": pass array.astype(array.dtype.newbyteorder('='))"
    return ""


def frameworks_of(tensors: Iterable[Any]) -> list[Framework]:
    """Return the frameworks of tensors that ``described`` takes, each with one of the devices that these are on."""
    places = {tensor.device for tensor in tensors if not isinstance(tensor, np.ndarray)}
    return [Torch(place) for place in places]
