"""Reads the safetensors header strictly: it tells where each tensor's bytes lie in the file.

The format (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON object that maps names
to ``{"dtype", "shape", "data_offsets"}``, then the data. This reader checks every promise of the format before it
returns, and uses nothing of a file that breaks one.

Objects of Python take more memory than the text that they come from. Both the length of a header, at most 100 MB as in
safetensors itself, and the number of values in it, at most 2 million, are checked before it is parsed. Reading one
takes at most 9 times its length, which a text of four bytes a character needs, and 250 bytes for each value.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerohop.integrations.safetensors.dtypes import BITS
from zerohop.shown import shown

MAX_HEADER_BYTES = 100_000_000
PREFIX_BYTES = 8
# How zip archives begin, which the length of a header seldom does.
_ZIP = b"PK\x03\x04"
# Enough for 200,000 tensors in one file; with it no header takes more than half a gigabyte beside its text.
MOST_VALUES = 1 << 21
# numpy and torch take no more.
_MOST_DIMENSIONS = 64


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

    @property
    def nbytes(self) -> int:
        """Return the length of the file."""
        return self.data_start + self.data_nbytes


class SafetensorsError(ValueError):
    """Raised if a file is not valid safetensors; the message says what is wrong."""


def read_layout(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Read and check the header of the file ``path`` of this machine.

    Raises:
        TypeError: it is no path.
        SafetensorsError: the file breaks the format.
        OSError: the file cannot be read.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"a path is a string or a Path, not {shown(path)}")
    name = os.fspath(path)
    with Path(name).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(PREFIX_BYTES)
        return parse_layout(file.read(header_length(prefix, size, name)), size, name)


def header_length(prefix: bytes, size: int, name: str) -> int:
    """Return the length of the header that follows the prefix, which is the first 8 bytes of a file.

    Args:
        prefix: these bytes, or all that the file has.
        size: length of the file in bytes.
        name: how errors call the file.

    Raises:
        SafetensorsError: no file of this size has such a header.
    """
    if len(prefix) < PREFIX_BYTES:
        raise _damaged(name, f"the file has {len(prefix)} bytes; the header's length alone takes {PREFIX_BYTES}")
    length: int = struct.unpack("<Q", prefix)[0]
    zipped = "; it begins like a zip archive, which torch.load() reads" if prefix.startswith(_ZIP) else ""
    if length > MAX_HEADER_BYTES:
        raise _damaged(name, f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} are allowed{zipped}")
    if length > size - PREFIX_BYTES:
        left = size - PREFIX_BYTES
        raise _damaged(name, f"the header claims {length} bytes; the file has {left} after the length{zipped}")
    return length


def parse_layout(header: bytes, size: int, name: str) -> SafetensorsFile:
    """Return the layout that a header tells, if it keeps every promise of the format.

    Args:
        header: the JSON, as long as ``header_length`` said.
        size: length of the file in bytes.
        name: how errors call the file.

    Raises:
        SafetensorsError: it breaks the format.
    """
    try:
        check_count(header)
        raw = _parse(header)
        metadata = _metadata(raw.pop("__metadata__", {}))
        data_start = PREFIX_BYTES + len(header)
        tensors = sorted((_entry(tensor, facts) for tensor, facts in raw.items()), key=lambda t: (t.offset, t.nbytes))
        _check_cover(tensors, size - data_start)
    except SafetensorsError as error:
        said = str(error)
    else:
        return SafetensorsFile(data_start, size - data_start, tuple(tensors), metadata)
    # Outside of the handler: the errors that led here hold the whole text.
    raise _damaged(name, said)


def check_count(header: bytes) -> None:
    """Raise SafetensorsError if a header has more values than are read."""
    # Each value, also within a string, has one of these before it; the first one has the brace of the object.
    count = header.count(b",") + header.count(b"[") + header.count(b"{")
    if count > MOST_VALUES:
        raise SafetensorsError(f"the header has up to {count} values; at most {MOST_VALUES} are read")


def _damaged(name: str, said: str) -> SafetensorsError:
    return SafetensorsError(f"{name} is not a safetensors file, or a damaged one: {said}")


def _parse(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise SafetensorsError("the header does not start with '{'")
    try:
        raw = json.loads(header.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:  # of UTF-8, of JSON, or a number of too many digits
        if isinstance(error, SafetensorsError):
            raise
        raise SafetensorsError(f"the header is not valid JSON: {error}") from None
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


def _naturals(tensor: str, what: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int and 0 <= number < 1 << 63 for number in value):
        raise SafetensorsError(f"{what} of tensor {shown(tensor)} is not a list of integers of at least 0")
    return tuple(value)


def _entry(name: str, facts: object) -> TensorEntry:
    if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"tensor {shown(name)} needs dtype, shape and data_offsets, and nothing else")
    bits = BITS.get(facts["dtype"]) if isinstance(facts["dtype"], str) else None
    if bits is None:
        raise SafetensorsError(f"tensor {shown(name)} has an unknown dtype {shown(facts['dtype'])}")
    shape = _naturals(name, "the shape", facts["shape"])
    offsets = _naturals(name, "data_offsets", facts["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SafetensorsError(f"data_offsets of tensor {shown(name)} are not [begin, end]")
    if len(shape) > _MOST_DIMENSIONS:
        raise SafetensorsError(
            f"tensor {shown(name)} has {len(shape)} dimensions; at most {_MOST_DIMENSIONS} are allowed"
        )
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * bits != nbytes * 8:
        raise SafetensorsError(
            f"tensor {shown(name)}: {facts['dtype']} of shape {shown(list(shape))} does not take {nbytes} bytes"
        )
    if math.prod(max(length, 1) for length in shape) * bits >= 1 << 66:
        # Libraries count in 64 bits also where one dimension of 0 makes the tensor empty.
        raise SafetensorsError(f"the shape of tensor {shown(name)} is too large: {shown(list(shape))}")
    return TensorEntry(name, facts["dtype"], shape, offsets[0], nbytes)


def _check_cover(tensors: list[TensorEntry], data_nbytes: int) -> None:
    end = 0
    for tensor in tensors:
        if tensor.offset != end:
            raise SafetensorsError(
                f"tensor {shown(tensor.name)} starts at {tensor.offset}; the one before ends at {end}"
            )
        end += tensor.nbytes
    if end != data_nbytes:
        raise SafetensorsError(f"the tensors take {end} bytes of data; the file has {data_nbytes}")
