"""Finds the memory behind a user's object: address, length, device, and the object that keeps it alive.

Nothing is copied and no framework is imported: torch tensors are recognised by their methods (torch_tensors.py), others
by protocol.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import platform
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zerohop._native import buffer_start, may_write
from zerohop.core.memory import dlpack, holders, shared_pages, torch_tensors
from zerohop.core.memory.layouts import BYTES, ROWS, count_of, is_masked, layout_of, require_rows
from zerohop.core.memory.source import Moved, Source, whole_allocation
from zerohop.core.runtime.devices import DEVICE_BY_ADDRESS, HOST, SOME_DEVICE
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop._native import BlockWatch
    from zerohop.core.memory.shared_pages import Backing

# The end of user space, but for x86-64 with five levels of page tables, where it is 2^56, and for Arm.
_USER_SPACE_END: Final = 1 << 47
_LAST_ADDRESS: Final = 1 << 63
# Times that an object is looked at anew that other threads move just then.
_LOOKS: Final = 3
_NO_BUF: Final = object()
# Field names of a struct in the format string of a buffer.
_FIELD_NAME: Final = re.compile(":[^:]*:")


def read(x: Any, *, as_bytes: bool = False) -> Source:
    """Return the range behind an object.

    The object is a numpy array, a torch tensor, anything with DLPack, ``__cuda_array_interface__`` or the buffer
    protocol, a ``multiprocessing.shared_memory.SharedMemory``, or a raw ``(pointer, nbytes, device)``. With
    ``as_bytes`` its axes may lie in any order in memory, as long as there are no gaps.

    Raises:
        TypeError: the object is none of these, or an array of Python objects.
        ValueError: it is not contiguous, is a raw range that makes no sense, or has no memory (any more).
        Unsupported: its memory is on a device that this build has no driver for.
    """
    source = _look_at(x, as_bytes)
    end = source.address + source.nbytes
    # The processor reports no address for a fault beyond user space, so it could not be told from somebody else's.
    beyond = source.device == HOST and end > _USER_SPACE_END and end > _user_space_end()
    if beyond or source.address < 0 or source.nbytes < 0 or end > _LAST_ADDRESS:
        at = hex(source.address) if abs(source.address) < _LAST_ADDRESS else shown(source.address)
        raise ValueError(f"no memory has address {at} and {shown(source.nbytes)} bytes")
    if source.address == 0 and source.nbytes:
        raise ValueError(f"{source.nbytes} bytes of {type(x).__name__} at address 0: there is no memory behind it")
    private = isinstance(x, np.ndarray) and not source.may_be_shared
    ends = (source.address, source.address + source.nbytes - 1)
    if source.device == HOST and source.nbytes and not (source.readonly or private or all(map(may_write, ends))):
        # torch and raw pointers say nothing of a file that is mapped for reading.
        source = source._replace(readonly=True)
    return source


def _look_at(x: Any, as_bytes: bool) -> Source:
    for _ in range(_LOOKS):
        try:
            return _source(x, as_bytes)
        except Moved as error:
            if not (torch_tensors.is_tensor(x) or holders.owns_memory(x)):  # a view stays where it is
                raise ValueError(str(error)) from None
    raise ValueError("other threads move it again and again. Fix: register it when they do not")


def _source(x: Any, as_bytes: bool) -> Source:
    if isinstance(x, np.ndarray):
        return _from_numpy(x, as_bytes)
    if isinstance(x, tuple):
        return _from_tuple(x)
    if torch_tensors.is_tensor(x):
        return torch_tensors.read_tensor(x, as_bytes=as_bytes)
    if hasattr(x, "__cuda_array_interface__"):
        return _from_cuda_array_interface(x, as_bytes)
    if isinstance(getattr(x, "buf", None), memoryview):
        # A view of our own, because closing x releases x.buf. Nothing is unmapped while a view exists.
        return _from_buffer(memoryview(x.buf), x, as_bytes)
    try:
        view = memoryview(x)
    except (TypeError, BufferError):
        pass
    else:
        return _from_buffer(view, x, as_bytes)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x, as_bytes)
    if getattr(x, "buf", _NO_BUF) is None:
        raise ValueError(f"the {type(x).__name__} is closed, and has no memory any more")
    raise TypeError(
        f"memory is a numpy array, a tensor with DLPack or __cuda_array_interface__, an object with the buffer "
        f"protocol or (pointer, nbytes, device); {type(x).__name__} is none of these"
    )


@functools.cache
def _user_space_end() -> int:
    if platform.machine() != "x86_64":
        return _LAST_ADDRESS
    five_levels = " la57" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return 1 << 56 if five_levels else _USER_SPACE_END


def has_its_own_memory(owner: object) -> bool:
    """Tell whether an array or a storage is the only owner of its memory, as far as that can be known."""
    if isinstance(owner, np.ndarray):
        return owner.flags.owndata
    return torch_tensors.is_storage(owner)


def find_backing(source: Source) -> Backing | None:
    """Return the shared file behind the whole allocation; None if there is none, or it cannot be opened."""
    if not source.may_be_shared:
        return None
    return shared_pages.backing_of(source.base, source.extent, lambda: _descriptor(source))


def _from_numpy(array: np.ndarray[Any, Any], as_bytes: bool) -> Source:
    if type(array) is not np.ndarray and is_masked(array):
        raise TypeError("a masked array, whose mask would be lost. Fix: pass x.data, or x.filled()")
    if array.flags.c_contiguous:
        layout = ROWS if array.ndim > 1 else BYTES
    else:
        found = layout_of(array.shape, array.strides, array.itemsize, array.itemsize)
        layout = require_rows(found, "array", "numpy.ascontiguousarray(x)", as_bytes=as_bytes)
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds pointers to Python objects, not data")
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    owner: object = root.base
    # NumPy resizes no array that has a weak reference, as it has from here on for as long as it is registered.
    hold = weakref.ref(root)
    address, readonly = _start_of(array)
    base, base_readonly = (address, readonly) if root is array else _start_of(root)
    nbytes, extent, flags = array.nbytes, root.nbytes, root.flags
    shared = not flags.owndata
    if flags.owndata and nbytes and not (base <= address and address + nbytes <= base + extent):
        raise Moved("the array that it is a view of has other memory by now. Fix: take a new view of it")
    # A root that does not own its memory may count some of it twice, or step over other memory (as_strided, windows).
    whole = flags.owndata or flags.forc
    if not whole or base_readonly != readonly or not (base <= address and address + nbytes <= base + extent):
        # Such a root, a read-only view of a writable array, or negative strides: the array is registered alone.
        base, extent, root = address, nbytes, array
    arrays: list[weakref.ref[Any]] = []
    behind = None if owner is None else holders.block_behind(owner, address, nbytes, arrays)
    if behind is not None:  # the array keeps the object, which may get other memory
        kept, block = behind
        return Source(address, nbytes, HOST, readonly, (array, kept), base, extent, root, shared, layout, block)
    if owner is None and root is array is not hold():
        arrays.append(hold)
    keep = (array, *arrays) if arrays else array
    return Source(address, nbytes, HOST, readonly, keep, base, extent, root, shared, layout, hold=hold)


def _start_of(array: np.ndarray[Any, Any]) -> tuple[int, bool]:
    """Return an array's address, and whether it is read-only."""
    try:
        return buffer_start(array)
    except (ValueError, BufferError):
        # Dates have no buffer format, and a root may not be contiguous. This attribute takes ten times as long.
        start: tuple[int, bool] = array.__array_interface__["data"]
        return start


def _from_buffer(view: memoryview, x: Any, as_bytes: bool) -> Source:
    found = layout_of(view.shape or (), view.strides or (), view.itemsize, view.itemsize)
    layout = require_rows(found, "buffer", "bytes(x), or a contiguous part of it", as_bytes=as_bytes)
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
    arrays: list[weakref.ref[Any]] = []
    block: BlockWatch | None = None
    behind = holders.block_behind(view, address, view.nbytes, arrays)
    keep: tuple[Any, ...] = *arrays, x, view
    if behind is not None:
        kept, block = behind
        keep = kept, *keep
    # Not by x, which may show other memory next time, as an object with a `buf` does.
    exporter = view.obj
    source = whole_allocation(address, view.nbytes, HOST, view.readonly, keep, exporter, may_be_shared=not private)
    return source._replace(layout=layout, block=block)


def _descriptor(source: Source) -> int:
    """Return the descriptor of the file that an object has mapped, borrowed from the object; -1 if it has none."""
    if torch_tensors.is_storage(source.cached_by):
        return torch_tensors.borrow_descriptor(source.cached_by)
    kept = source.keep if isinstance(source.keep, tuple) else (source.keep,)
    descriptors = (getattr(each, "_fd", -1) for each in kept)
    return next((fd for fd in descriptors if isinstance(fd, int) and fd >= 0), -1)


def _from_dlpack(x: Any, as_bytes: bool) -> Source:
    tensor = dlpack.read(x)
    layout = require_rows(tensor.layout, "tensor", "a contiguous copy", as_bytes=as_bytes)
    device = DEVICE_BY_ADDRESS if tensor.on_device else HOST
    keep, shared = (x, tensor.capsule), not tensor.on_device
    # Not cached, because x may export other memory next time.
    source = whole_allocation(tensor.address, tensor.nbytes, device, tensor.readonly, keep, None, may_be_shared=shared)
    return source._replace(layout=layout)


def _from_cuda_array_interface(x: Any, as_bytes: bool) -> Source:
    interface = x.__cuda_array_interface__
    try:
        address, readonly = interface["data"]
        where = operator.index(address or 0)
        shape = tuple(map(operator.index, interface["shape"]))
        strides = tuple(map(operator.index, interface.get("strides") or ()))
        dtype = np.dtype(str(interface["typestr"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TypeError(f"the __cuda_array_interface__ of {type(x).__name__} is malformed: {error!r}") from None
    if interface.get("mask") is not None:
        raise TypeError("a device array with a mask, which would be lost. Fix: pass the data, or fill what is masked")
    if dtype.hasobject:
        raise TypeError(f"a device array of {dtype} holds pointers to Python objects, not data")
    nbytes = count_of(shape) * dtype.itemsize
    layout = ROWS if len(shape) > 1 else BYTES
    if strides:
        found = layout_of(shape, strides, dtype.itemsize, dtype.itemsize)
        layout = require_rows(found, "device array", "a contiguous copy", as_bytes=as_bytes)
    source = whole_allocation(where, nbytes, DEVICE_BY_ADDRESS, bool(readonly), x, None, may_be_shared=False)
    return source._replace(layout=layout)


def _from_tuple(x: tuple[Any, ...]) -> Source:
    if len(x) != 3:
        raise TypeError("raw memory is a tuple (pointer, nbytes, device)")
    address, nbytes, device = x
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in (address, nbytes)):
        raise TypeError("raw memory is (pointer, nbytes, device), the first two of them ints")
    if not isinstance(device, str) or not device:  # an empty one would mean: whose memory the address is
        raise TypeError(
            f'the device of raw memory is a name such as "host" or "sim:0", or "device" or "auto", not {shown(device)}'
        )
    if device == SOME_DEVICE:
        device = DEVICE_BY_ADDRESS
    return whole_allocation(address, nbytes, device, False, None, None, may_be_shared=device == HOST)
