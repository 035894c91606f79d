"""Reads the safetensors header strictly: it tells where each tensor's bytes lie in the file.

The format (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON object that maps names
to ``{"dtype", "shape", "data_offsets"}``, then the data. This reader checks every promise of the format before it
returns, and uses nothing of a file that breaks one. Reading a header never allocates more than the header's own size,
which is at most 100 MB.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Describes one tensor: name, dtype as the format names it, shape, offset and length of its bytes in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """Holds the layout of one file.

    Attributes:
        data_start: offset of the data section in the file.
        data_nbytes: length of the data section; the tensors cover it without a gap and without overlap.
        tensors: the tensors, in the order of their bytes.
        metadata: the strings that the file's author added.
    """

    data_start: int
    data_nbytes: int
    tensors: tuple[TensorEntry, ...]
    metadata: dict[str, str]


class SafetensorsError(ValueError):
    """Raised if a file is not valid safetensors; the message says what is wrong."""


def read_layout(path: Path) -> SafetensorsFile:
    """Read and check the header of `path`.

    Raises:
        SafetensorsError: the file breaks the format.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header = _read_header(file, size)
        data_start = 8 + len(header)
        raw = _parse(header)
        metadata = _metadata(raw.pop("__metadata__", {}))
        tensors = sorted((_entry(name, facts) for name, facts in raw.items()), key=lambda t: (t.offset, t.nbytes))
        _check_cover(tensors, size - data_start)
    except SafetensorsError as error:
        raise SafetensorsError(f"{path} is not a safetensors file, or a damaged one: {error}") from None
    return SafetensorsFile(data_start, size - data_start, tuple(tensors), metadata)


def _read_header(file: BinaryIO, size: int) -> bytes:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise SafetensorsError(f"the file has {size} bytes; the header's length alone takes 8")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER_BYTES:
        raise SafetensorsError(f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    if length > size - 8:
        raise SafetensorsError(f"the header claims {length} bytes; the file has {size - 8} after the length")
    header = file.read(length)
    if len(header) < length:
        raise SafetensorsError("the file became shorter while it was read")
    if not header.startswith(b"{"):
        raise SafetensorsError("the header does not start with '{'")
    return header


def _parse(header: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(header.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise SafetensorsError(f"the header is not valid JSON: {error}") from error
    assert isinstance(raw, dict)  # the header is valid JSON and starts with '{'
    return raw


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise SafetensorsError("the header names something twice")
    return keys


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise SafetensorsError("__metadata__ is not an object of strings")
    return value


def _naturals(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int and 0 <= number < 1 << 63 for number in value):
        raise SafetensorsError(f"{what} is not a list of integers of at least 0")
    return tuple(value)


def _entry(name: str, facts: object) -> TensorEntry:
    if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"tensor {name!r} needs dtype, shape and data_offsets, and nothing else")
    bits = _BITS.get(facts["dtype"]) if isinstance(facts["dtype"], str) else None
    if bits is None:
        raise SafetensorsError(f"tensor {name!r} has an unknown dtype {facts['dtype']!r}")
    shape = _naturals(facts["shape"], f"the shape of tensor {name!r}")
    offsets = _naturals(facts["data_offsets"], f"data_offsets of tensor {name!r}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SafetensorsError(f"data_offsets of tensor {name!r} are not [begin, end]")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * bits != nbytes * 8:
        raise SafetensorsError(f"tensor {name!r}: {facts['dtype']} of shape {list(shape)} does not take {nbytes} bytes")
    return TensorEntry(name, facts["dtype"], shape, offsets[0], nbytes)


def _check_cover(tensors: list[TensorEntry], data_nbytes: int) -> None:
    end = 0
    for tensor in tensors:
        if tensor.offset != end:
            raise SafetensorsError(f"tensor {tensor.name!r} starts at {tensor.offset}; the one before ends at {end}")
        end += tensor.nbytes
    if end != data_nbytes:
        raise SafetensorsError(f"the tensors take {end} bytes of data; the file has {data_nbytes}")
