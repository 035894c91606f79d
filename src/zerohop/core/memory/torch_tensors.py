"""Finds the memory behind tensors of torch, which is never imported: tensors are recognised by their methods.

A tensor can get other memory at any time (``p.data = x``, ``module.half()``), and keeps no longer what it had. So its
storage is kept, which owns the memory. ``share_memory_()`` and ``resize_()`` move the bytes under the same storage; its
BlockWatch tells that.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final, NamedTuple, TypeAlias

from zerohop._native import BlockWatch
from zerohop.core.memory.layouts import BYTES, ROWS, layout_of, require_rows
from zerohop.core.memory.source import Moved, Source, whole_allocation
from zerohop.core.runtime.devices import DEVICE_BY_ADDRESS, HOST
from zerohop.errors import Unsupported

# Types of which PyTorch says that an element has a byte, where several share one.
_PACKED: Final = ("torch.quint4x2", "torch.quint2x4")
# What a tensor of another layout is passed as: the same values in one range, or the tensors that it is made of.
_BY_ROWS: Final = "tensor.to_dense(), or its crow_indices(), col_indices() and values()"
_BY_COLUMNS: Final = "tensor.to_dense(), or its ccol_indices(), row_indices() and values()"
_PARTS: Final = {
    "torch.sparse_coo": "tensor.to_dense(), or the indices() and values() of tensor.coalesce()",
    "torch.sparse_csr": _BY_ROWS,
    "torch.sparse_bsr": _BY_ROWS,
    "torch.sparse_csc": _BY_COLUMNS,
    "torch.sparse_bsc": _BY_COLUMNS,
    "torch.jagged": "its values() and offsets()",
}
_METHODS: Final = ("data_ptr", "element_size", "untyped_storage", "is_contiguous")
# Words at the start of torch's object for a storage, of which two are address and length of its memory.
_STORAGE_WORDS: Final = 12
_WORD_BYTES: Final = ctypes.sizeof(ctypes.c_uint64)
# A length that no other word of that object has.
_PROBE_BYTES: Final = 0x12345


class _Words(NamedTuple):
    """Holds the bytes from the start of torch's object for a storage to the two words; a length of 0: not found."""

    start: int
    length: int


# Empty until the first storage was seen.
_words: Final[list[_Words]] = []

# Describes a contiguous tensor on a GPU: its address, length in bytes, layout, storage, and the watch of that. It is a
# plain tuple, because to make a NamedTuple takes as long as five calls of torch.
OnGpu: TypeAlias = tuple[int, int, bytes, Any, BlockWatch]

# Types of tensors that were found on a GPU, each with the layout that is one range. Registering thousands of tensors
# looks here first. The types are torch's own and those derived from it, so there are few.
tensors_on_gpus: Final[dict[type, Any]] = {}


def is_tensor(x: object) -> bool:
    """Tell whether an object is a tensor of torch."""
    return all(hasattr(type(x), method) for method in _METHODS)


def way_to_integers(tensor: Any) -> str:
    """Return what to type for a tensor that NumPy does not read as integers; "" if nothing helps."""
    if tensor.device.type == "meta":
        return ""
    steps = [
        (tensor.requires_grad, ".detach()"),
        (tensor.is_nested, ".values()"),
        (not tensor.is_nested and str(tensor.layout) != "torch.strided", ".to_dense()"),
        (tensor.device.type != "cpu", ".cpu()"),
        (tensor.is_conj(), ".resolve_conj()"),
        (tensor.is_neg(), ".resolve_neg()"),
        (tensor.is_complex(), ".real"),
        (tensor.is_floating_point() or tensor.is_complex(), ".long()"),
    ]
    taken = "".join(step for needed, step in steps if needed)
    return f"x{taken}" if taken else ""


def on_gpu(tensor: Any) -> OnGpu | None:
    """Describe a tensor of a type in ``tensors_on_gpus``; return None if ``read_tensor`` must look at it."""
    try:
        if (
            tensor.is_cuda
            and tensor.layout is tensors_on_gpus[type(tensor)]
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
            and not tensor.is_quantized
        ):
            layout = ROWS if tensor.ndim > 1 else BYTES
            storage = tensor.untyped_storage()
            block = watch(storage)  # before the address is asked for, so that no move in between goes unnoticed
            address, nbytes = tensor.data_ptr(), tensor.nbytes
            if block is not None and block.holds(address, nbytes):
                return address, nbytes, layout, storage, block
    except RuntimeError:  # the tensor has no memory of its own
        pass
    return None


def read_tensor(tensor: Any, *, as_bytes: bool) -> Source:
    """Return the memory of a tensor; raises what ``sources.read`` raises, and Moved."""
    try:
        return _read(tensor, as_bytes=as_bytes)
    except RuntimeError as error:
        # torch raises this for arguments of torch.func's functions, masked tensors, and others that wrap a tensor.
        said = str(error).partition("\n")[0]
        raise TypeError(
            f"this {type(tensor).__name__} has no memory of its own that torch shows: it wraps another tensor, or "
            f"computes its values ({said}). Fix: pass the tensor behind it, or its values in an ordinary tensor"
        ) from None


def _read(tensor: Any, *, as_bytes: bool) -> Source:
    kind = tensor.device.type
    if kind == "meta":
        raise _no_memory("meta")
    if kind not in ("cpu", "cuda"):
        raise Unsupported(
            f"torch tensors on {tensor.device}: this build has no driver for them", fix="use tensor.cpu()"
        )
    if str(tensor.layout) != "torch.strided":
        parts = _PARTS.get(str(tensor.layout), "tensor.to_dense()")
        raise TypeError(
            f"a tensor of layout {tensor.layout} has no memory of its own that is one range. Fix: pass {parts}"
        )
    if tensor.is_quantized and str(tensor.dtype) in _PACKED:
        raise TypeError(
            f"a tensor of {tensor.dtype}, of whose elements several share a byte. Fix: pass its bytes, "
            f"torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()), where x is the whole tensor"
        )
    try:
        itemsize = tensor.element_size()
    except ValueError:  # a parameter of a module that is still to learn its shape
        raise ValueError(
            f"this {type(tensor).__name__} has neither shape nor memory yet. Fix: call its module once with an input"
        ) from None
    if tensor.is_contiguous():
        layout = ROWS if tensor.ndim > 1 else BYTES
    else:
        layout = require_rows(
            layout_of(tensor.shape, tensor.stride(), 1, itemsize), "tensor", "tensor.contiguous()", as_bytes=as_bytes
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor's memory does not hold its values. Fix: tensor.resolve_conj().resolve_neg()")
    # numpy() and DLPack refuse tensors that require gradients, and bfloat16, so the storage is asked.
    storage = tensor.untyped_storage()
    # A fake tensor would answer with a warning and address 0.
    if storage.device.type == "meta":
        raise _no_memory("fake")
    block = watch(storage)  # before the address is asked for, so that no move in between goes unnoticed
    # While torch.jit.trace runs, numel() is a tensor.
    nbytes = tensor.nbytes
    if kind == "cuda":
        # The driver is asked for the allocation, which is larger than torch's storage.
        tensors_on_gpus[type(tensor)] = tensor.layout
        address = int(tensor.data_ptr())
        _check_within(block, address, nbytes)
        source = whole_allocation(address, nbytes, DEVICE_BY_ADDRESS, False, storage, None, may_be_shared=False)
        return source._replace(layout=layout, block=block)
    base, extent = int(storage.data_ptr()), int(storage.nbytes())
    # torch gives an empty tensor no address.
    address = int(tensor.data_ptr()) if nbytes else base
    _check_within(block, base, extent)  # which were asked for one after the other
    _check_within(block, address, nbytes)
    shared = bool(tensor.is_shared())
    return Source(address, nbytes, HOST, False, storage, base, extent, storage, shared, layout, block)


def _check_within(block: BlockWatch | None, address: int, nbytes: int) -> None:
    """Refuse a range of a tensor that does not lie in its storage.

    Raises:
        Moved: the storage has got other memory since it was watched.
        ValueError: the tensor does not lie there at all.
    """
    if not nbytes or (block is not None and block.holds(address, nbytes)):
        return
    if block is not None and block.moved:
        raise Moved("the tensor gets other memory just now")
    raise ValueError("the tensor does not lie within its storage")


def watch(storage: Any) -> BlockWatch | None:
    """Return what tells when a storage gets other memory; None for a storage without memory."""
    start, owner = storage.data_ptr(), storage._cdata
    if not start:
        return None
    if not _words:
        _words.append(_find_words(start, owner))
    start_word, length_word = _words[0]
    return BlockWatch(owner + start_word, start, length_word and owner + length_word, storage.nbytes())


def _find_words(start: int, owner: int) -> _Words:
    """Find the words by a storage whose length nothing else has; without torch the address by another storage's."""
    try:
        probe = sys.modules["torch"].UntypedStorage(_PROBE_BYTES)
        found = _words_of(probe._cdata)
        return _Words(_WORD_BYTES * found.index(probe.data_ptr()), _WORD_BYTES * found.index(_PROBE_BYTES))
    except (KeyError, ValueError, RuntimeError, AttributeError, TypeError):
        # Without torch itself (another library's tensor may look like one of its) the address alone is watched.
        return _Words(_WORD_BYTES * _words_of(owner).index(start), 0)


def _words_of(owner: int) -> list[int]:
    return list((ctypes.c_uint64 * _STORAGE_WORDS).from_address(owner))


def hold_size(storage: Any) -> None:
    """Have torch refuse ``resize_()`` from now on, as it does for all memory that it has shown to NumPy."""
    torch: Any = sys.modules["torch"]
    try:
        # On the CPU, whatever device the program makes tensors on otherwise.
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    except (RuntimeError, TypeError, AssertionError):
        # A mode of torch, such as FakeTensorMode, makes other tensors. The BlockWatch notices what is not refused then.
        pass


def borrow_descriptor(storage: Any) -> int:
    """Return the descriptor of the file that a shared storage mapped; -1 if it has none.

    torch removes the file's name at once, and keeps the descriptor.
    """
    try:
        return int(storage._share_fd_cpu_()[0])
    except (RuntimeError, OSError, AttributeError):
        return -1


def is_storage(x: object) -> bool:
    """Tell whether an object is a storage of torch."""
    return hasattr(type(x), "_share_fd_cpu_") and hasattr(type(x), "data_ptr")


def _no_memory(sort: str) -> ValueError:
    return ValueError(f"a {sort} tensor has a shape, and no memory. Fix: pass a real one, such as torch.zeros(shape)")


def storage_of(tensor: Any) -> tuple[Any, BlockWatch | None]:
    """Return the storage of a tensor, and what tells when it gets other memory."""
    storage = tensor.untyped_storage()
    return storage, watch(storage)
