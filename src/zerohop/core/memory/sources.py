"""Finds the memory behind a user's object: address, length, device, and the object that keeps it alive.

Nothing is copied and no framework is imported: torch tensors are recognised by their methods, others by protocol.
"""

from __future__ import annotations

import ctypes
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from zerohop._native import buffer_start
from zerohop.core.memory import dlpack, shared_pages
from zerohop.core.runtime.devices import DEVICE_BY_ADDRESS, HOST
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from zerohop.core.memory.shared_pages import Backing

# No user space reaches beyond this, on any processor that this runs on.
_USER_SPACE_END: Final = 1 << 63
_NO_BUF: Final = object()
# Field names of a struct in the format string of a buffer.
_FIELD_NAME: Final = re.compile(":[^:]*:")
_TORCH_METHODS: Final = ("data_ptr", "element_size", "untyped_storage", "is_contiguous")


class Source(NamedTuple):
    """Describes a range of memory, and the allocation that it is part of.

    The allocation is registered, and not the range, so that all slices of a tensor share one registration.
    """

    address: int
    nbytes: int
    device: str
    readonly: bool
    keep: object
    base: int
    extent: int
    # The object whose lifetime bounds a cached registration; None: a GPU's memory, or not cached.
    cached_by: object | None
    # Whether the pages may belong to a shared file, which is slow to find out.
    may_be_shared: bool

    @property
    def offset(self) -> int:
        """Return the offset of the range within its allocation."""
        return self.address - self.base


def read(x: Any) -> Source:
    """Return the range behind an object.

    The object is a numpy array, a torch tensor, anything with DLPack, ``__cuda_array_interface__`` or the buffer
    protocol, a ``multiprocessing.shared_memory.SharedMemory``, or a raw ``(pointer, nbytes, device)``.

    Raises:
        TypeError: the object is none of these, or an array of Python objects.
        ValueError: it is not contiguous, is a raw range that makes no sense, or has no memory (any more).
        Unsupported: its memory is on a device that this build has no driver for.
    """
    source = _source(x)
    if source.address == 0 and source.nbytes:
        raise ValueError(f"{source.nbytes} bytes of {type(x).__name__} at address 0: there is no memory behind it")
    return source


def _source(x: Any) -> Source:
    if isinstance(x, np.ndarray):
        return _from_numpy(x)
    if isinstance(x, tuple):
        return _from_tuple(x)
    kind = type(x)
    if all(hasattr(kind, method) for method in _TORCH_METHODS):
        return _from_torch(x)
    if hasattr(x, "__cuda_array_interface__"):
        return _from_cuda_array_interface(x)
    if isinstance(getattr(x, "buf", None), memoryview):
        # A view of our own, because closing x releases x.buf. Nothing is unmapped while a view exists.
        return _from_buffer(memoryview(x.buf), x)
    try:
        view = memoryview(x)
    except (TypeError, BufferError):
        pass
    else:
        return _from_buffer(view, x)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x)
    if getattr(x, "buf", _NO_BUF) is None:
        raise ValueError(f"the {kind.__name__} is closed, and has no memory any more")
    raise TypeError(
        f"memory is a numpy array, a tensor with DLPack or __cuda_array_interface__, an object with the buffer "
        f"protocol or (pointer, nbytes, device); {kind.__name__} is none of these"
    )


# Types of tensors that were found on a GPU, each with the layout that is one range. Registering thousands of tensors
# looks here first. The types are torch's own and those derived from it, so there are few.
tensors_on_gpus: Final[dict[type, Any]] = {}


def on_gpu(tensor: Any) -> tuple[int, int] | None:
    """Return address and length of a tensor of a type in ``tensors_on_gpus``; None if ``read`` must look at it."""
    try:
        if (
            tensor.is_cuda
            and tensor.layout is tensors_on_gpus[type(tensor)]
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
        ):
            return tensor.data_ptr(), tensor.nbytes
    except RuntimeError:  # the tensor has no memory of its own
        pass
    return None


def has_its_own_memory(owner: object) -> bool:
    """Tell whether an array or a tensor is the only owner of its memory, as far as that can be known."""
    if isinstance(owner, np.ndarray):
        return owner.flags.owndata
    return all(hasattr(type(owner), method) for method in _TORCH_METHODS)


def find_backing(source: Source) -> Backing | None:
    """Return the shared file behind the whole allocation; None if there is none, or it cannot be opened."""
    if not source.may_be_shared:
        return None
    return shared_pages.backing_of(source.base, source.extent, lambda: _descriptor(source.cached_by))


def _not_contiguous(what: str, fix: str) -> ValueError:
    return ValueError(f"the {what} is not contiguous, so its bytes are not one range. Fix: {fix}")


def _from_numpy(array: np.ndarray[Any, Any]) -> Source:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise _not_contiguous("array", "pass numpy.ascontiguousarray(x), or slice along its first axis only")
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds pointers to Python objects, not data")
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    address, readonly = _start_of(array)
    base, base_readonly = (address, readonly) if root is array else _start_of(root)
    nbytes, extent = array.nbytes, root.nbytes
    shared = not root.flags.owndata
    if base_readonly != readonly or not (base <= address and address + nbytes <= base + extent):
        # A read-only view of a writable array, or a root with negative strides: the array is registered alone.
        base, extent, root = address, nbytes, array
    return Source(address, nbytes, HOST, readonly, array, base, extent, root, shared)


def _start_of(array: np.ndarray[Any, Any]) -> tuple[int, bool]:
    """Return an array's address, and whether it is read-only."""
    try:
        return buffer_start(array)
    except (ValueError, BufferError):
        # Dates have no buffer format, and a root may not be contiguous. This attribute takes ten times as long.
        start: tuple[int, bool] = array.__array_interface__["data"]
        return start


def _from_buffer(view: memoryview, x: Any) -> Source:
    if not view.contiguous:
        raise _not_contiguous("buffer", "pass bytes(x), or a contiguous part of it")
    if "O" in _FIELD_NAME.sub("", view.format):
        raise TypeError("a buffer of Python objects holds pointers, not data")
    if view.nbytes == 0:
        address = 0
    elif view.readonly or not view.c_contiguous:
        address = np.asarray(view.cast("B") if view.c_contiguous else view).__array_interface__["data"][0]
    else:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    # The view is kept as well, because a bytearray cannot be resized while a view of it exists.
    private = isinstance(x, (bytes, bytearray))
    # `keep` has the exporter, too: its lifetime bounds the cached registration. A tuple drops its last item first, and
    # the view must be gone before a SharedMemory closes itself.
    return _whole_allocation(address, view.nbytes, HOST, view.readonly, (x, view), x, may_be_shared=not private)


def _from_torch(tensor: Any) -> Source:
    kind = tensor.device.type
    if kind == "meta":
        raise _no_memory("meta")
    if kind not in ("cpu", "cuda"):
        raise Unsupported(
            f"torch tensors on {tensor.device}: this build has no driver for them", fix="use tensor.cpu()"
        )
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"a tensor of layout {tensor.layout} has no memory of its own that is one range")
    if not (tensor.is_contiguous() or tensor.numel() <= 1 or _is_dense(tensor)):
        raise _not_contiguous("tensor", "pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor's memory does not hold its values. Fix: tensor.resolve_conj().resolve_neg()")
    nbytes = tensor.numel() * tensor.element_size()
    if kind == "cuda":
        # The driver is asked for the allocation, which is larger than torch's storage.
        tensors_on_gpus[type(tensor)] = tensor.layout
        return _whole_allocation(
            int(tensor.data_ptr()), nbytes, DEVICE_BY_ADDRESS, False, tensor, None, may_be_shared=False
        )
    # numpy() and DLPack refuse tensors that require gradients, and bfloat16, so the storage is asked.
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # torch.vmap passes such tensors to the function that it maps
        raise TypeError(f"a {type(tensor).__name__} without storage of its own is no memory") from None
    # A fake tensor would answer with a warning and address 0.
    if storage.device.type == "meta":
        raise _no_memory("fake")
    base, extent = int(storage.data_ptr()), int(storage.nbytes())
    # torch gives an empty tensor no address.
    address = int(tensor.data_ptr()) if nbytes else base
    if not (base <= address and address + nbytes <= base + extent):
        raise ValueError("the tensor does not lie within its storage")
    owner = tensor._base if tensor._base is not None else tensor
    return Source(address, nbytes, HOST, False, tensor, base, extent, owner, bool(tensor.is_shared()))


def _no_memory(sort: str) -> ValueError:
    return ValueError(f"a {sort} tensor has a shape, and no memory. Fix: pass a real one, such as torch.zeros(shape)")


def _is_dense(tensor: Any) -> bool:
    """Tell whether the elements fill their range in some order of the axes (channels last, transposed)."""
    pairs = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    expected = 1
    for stride, size in pairs:
        if stride != expected:
            return False
        expected *= size
    return True


def _descriptor(owner: Any) -> int:
    """Return the descriptor of the file that the owner mapped, borrowed from the owner; -1 if it has none."""
    if all(hasattr(type(owner), method) for method in _TORCH_METHODS):
        # torch removes the file's name at once, and keeps the descriptor.
        try:
            return int(owner.untyped_storage()._share_fd_cpu_()[0])
        except (RuntimeError, OSError, AttributeError):
            return -1
    fd = getattr(owner, "_fd", -1)
    return fd if isinstance(fd, int) else -1


def _from_dlpack(x: Any) -> Source:
    tensor = dlpack.read(x)
    if not tensor.contiguous:
        raise _not_contiguous("tensor", "pass a contiguous copy")
    keep = (x, tensor.capsule)
    if tensor.on_device:
        address, nbytes = tensor.address, tensor.nbytes
        return _whole_allocation(address, nbytes, DEVICE_BY_ADDRESS, tensor.readonly, keep, None, may_be_shared=False)
    return _whole_allocation(tensor.address, tensor.nbytes, HOST, tensor.readonly, keep, x, may_be_shared=True)


def _from_cuda_array_interface(x: Any) -> Source:
    interface = x.__cuda_array_interface__
    address, readonly = interface["data"]
    shape = tuple(interface["shape"])
    itemsize = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    if strides is not None and not dlpack.is_contiguous(shape, tuple(strides), itemsize):
        raise _not_contiguous("device array", "pass a contiguous copy")
    nbytes = math.prod(shape) * itemsize
    return _whole_allocation(int(address or 0), nbytes, DEVICE_BY_ADDRESS, bool(readonly), x, None, may_be_shared=False)


def _from_tuple(x: tuple[Any, ...]) -> Source:
    if len(x) != 3:
        raise TypeError("raw memory is a tuple (pointer, nbytes, device)")
    address, nbytes, device = x
    if isinstance(address, bool) or not isinstance(address, int) or not isinstance(nbytes, int):
        raise TypeError("raw memory is (pointer, nbytes, device), the first two of them ints")
    if not isinstance(device, str):
        raise TypeError(f'the device of raw memory is a name such as "host" or "sim:0", not {device!r}')
    if address < 0 or nbytes < 0 or address + nbytes > _USER_SPACE_END:
        raise ValueError(f"no memory has address {address:#x} and {nbytes} bytes")
    return _whole_allocation(address, nbytes, device, False, None, None, may_be_shared=device == HOST)


def _whole_allocation(
    address: int, nbytes: int, device: str, readonly: bool, keep: object, owner: object | None, *, may_be_shared: bool
) -> Source:
    """Return the Source of a range that is a whole allocation."""
    return Source(address, nbytes, device, readonly, keep, address, nbytes, owner, may_be_shared)
