"""Reads address, size and layout out of a DLPack capsule, whatever its element type; numpy refuses bfloat16 and others.

The capsule stays unconsumed: it keeps the memory, and gives the memory back when it is dropped.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

from zerohop.core.memory.layouts import BYTES, MAX_AXES, ROWS, count_of, layout_of
from zerohop.errors import Unsupported

_CPU: Final = 1
# Pinned host memory of CUDA and ROCm is host memory.
_HOST_DEVICES: Final = frozenset({_CPU, 3, 11})
_GPUS: Final = frozenset({2, 10})
_MANAGED: Final = 13
_DEVICE_NAMES: Final = {14: "oneapi", 8: "metal", 7: "vulkan"}
# This number asks the exporter to make no stream of the caller wait for work that the exporter has queued.
_NO_SYNCHRONISATION: Final = -1
_READ_ONLY: Final = 1
_PADDED: Final = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Tensor(NamedTuple):
    """Describes the tensor in a capsule, and keeps the capsule."""

    address: int
    nbytes: int
    readonly: bool
    # None: there are gaps.
    layout: bytes | None
    capsule: object
    on_device: bool


def read(exporter: Any) -> Tensor:
    """Return the tensor behind an object with ``__dlpack__`` and ``__dlpack_device__``.

    Raises:
        Unsupported: the tensor is on a device that this build has no driver for, or in managed memory.
        TypeError: its elements have no bits.
        ValueError, BufferError: the object refuses to export itself.
    """
    kind, _ = exporter.__dlpack_device__()
    device_type = int(kind)
    if device_type == _MANAGED:
        raise Unsupported(
            "managed memory is refused: its pages move, so that no peer can be told where they are",
            fix="copy it to memory of cudaMalloc, or to host memory",
        )
    on_device = device_type in _GPUS
    if not on_device and device_type not in _HOST_DEVICES:
        name = _DEVICE_NAMES.get(device_type, f"DLPack device type {device_type}")
        raise Unsupported(
            f"memory of {name} devices: this build has no driver for them",
            fix="copy it to host memory first",
        )
    stream = {"stream": _NO_SYNCHRONISATION} if on_device else {}
    try:
        capsule = exporter.__dlpack__(**stream, max_version=(1, 0))
    except TypeError:
        # The exporter knows only versions before 1, which cannot say that a tensor is read-only.
        capsule = exporter.__dlpack__(**stream)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = ctypes.cast(_pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)).contents
        if versioned.major != 1:
            raise Unsupported(f"DLPack version {versioned.major}", fix="export version 1")
        if versioned.flags & _PADDED:
            raise Unsupported(
                "a tensor whose elements of less than a byte are padded", fix="export it packed, or as bytes"
            )
        readonly = bool(versioned.flags & _READ_ONLY)
        tensor = versioned.tensor
    else:
        tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    if not 0 <= tensor.ndim <= MAX_AXES:
        raise ValueError(f"a DLPack tensor of {tensor.ndim} dimensions")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    bits = tensor.type_bits * tensor.type_lanes
    if not bits:
        raise TypeError(
            f"a DLPack tensor whose elements have {tensor.type_lanes} lanes of {tensor.type_bits} bits, which is none"
        )
    nbytes = (count_of(shape) * bits + 7) // 8
    layout: bytes | None = ROWS if tensor.ndim > 1 else BYTES
    if tensor.strides:
        layout = layout_of(shape, tuple(tensor.strides[i] for i in range(tensor.ndim)), 1, (bits + 7) // 8)
    address = (tensor.data or 0) + tensor.byte_offset
    return Tensor(address, nbytes, readonly, layout, capsule, on_device)


def _is_valid(capsule: object, name: bytes) -> bool:
    check = ctypes.pythonapi.PyCapsule_IsValid
    check.argtypes = (ctypes.py_object, ctypes.c_char_p)
    check.restype = ctypes.c_int
    return bool(check(capsule, name))


def _pointer(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes = (ctypes.py_object, ctypes.c_char_p)
    get.restype = ctypes.c_void_p
    address: int = get(capsule, name)
    return address
