"""The safetensors header reader: right on valid files, a named error on everything else."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerohop.integrations.safetensors import SafetensorsError, read_layout

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, header: Any, data: bytes = b"", *, padding: int = 0) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * padding
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_layout_in_the_order_of_the_bytes(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "late": entry("F32", [2, 3], 4, 28),
        "early": entry("BF16", [2], 0, 4),
        "scalar": entry("I64", [], 28, 36),
        "empty": entry("F32", [0, 7], 36, 36),
    }
    layout = read_layout(write(tmp_path / "m", header, bytes(36), padding=5))
    assert [tensor.name for tensor in layout.tensors] == ["early", "late", "scalar", "empty"]
    assert [(tensor.offset, tensor.nbytes) for tensor in layout.tensors] == [(0, 4), (4, 24), (28, 8), (36, 0)]
    assert layout.data_start == 8 + len(json.dumps(header)) + 5
    assert layout.data_nbytes == 36
    assert layout.metadata == {"format": "pt"}


def test_no_tensors(tmp_path: Path) -> None:
    assert read_layout(write(tmp_path / "m", {})).tensors == ()


def test_sub_byte_dtypes_count_bits(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path / "m", {"x": entry("F4", [6], 0, 3)}, bytes(3)))
    assert layout.tensors[0].nbytes == 3


@pytest.mark.parametrize(
    ("header", "data", "complaint"),
    [
        pytest.param({"x": entry("F32", [2], 0, 8)}, bytes(7), "8 bytes of data; the file has 7", id="short data"),
        pytest.param({"x": entry("F32", [2], 0, 8)}, bytes(9), "8 bytes of data; the file has 9", id="bytes of nobody"),
        pytest.param({"x": entry("F32", [2], 4, 12)}, bytes(12), "starts at 4", id="gap at the start"),
        pytest.param({"x": entry("U8", [4], 0, 4), "y": entry("U8", [4], 2, 6)}, bytes(6), "starts at 2", id="overlap"),
        pytest.param({"x": entry("F32", [3], 0, 8)}, bytes(8), "does not take 8 bytes", id="shape and size"),
        pytest.param({"x": entry("F4", [3], 0, 1)}, bytes(1), "does not take 1 bytes", id="half a byte"),
        pytest.param({"x": entry("F33", [2], 0, 8)}, bytes(8), "unknown dtype", id="dtype"),
        pytest.param({"x": entry("F32", [-2], 0, 8)}, bytes(8), "list of integers", id="negative dimension"),
        pytest.param({"x": entry("F32", [True], 0, 4)}, bytes(4), "list of integers", id="a truth as dimension"),
        pytest.param({"x": entry("F32", [2.0], 0, 8)}, bytes(8), "list of integers", id="fraction"),
        pytest.param({"x": entry("U8", [1 << 62, 4, 0], 0, 1)}, bytes(1), "does not take", id="product"),
        pytest.param({"x": entry("U8", [1] * 65, 0, 1)}, bytes(1), "65 dimensions", id="dimensions"),
        pytest.param({"x": entry("U8", [1 << 62] * 80_000, 0, 1)}, bytes(1), "80000 dimensions", id="a long product"),
        pytest.param(b'{"x": ' + b"9" * 5000 + b"}", b"", "not valid JSON", id="digits"),
        pytest.param({"x": entry("F32", [2], 8, 0)}, bytes(8), "[begin, end]", id="end before begin"),
        pytest.param({"x": {"dtype": "F32", "shape": [2]}}, bytes(8), "needs dtype", id="no offsets"),
        pytest.param({"x": [1, 2]}, bytes(8), "needs dtype", id="no object"),
        pytest.param({"__metadata__": {"a": 1}}, b"", "__metadata__", id="metadata"),
        pytest.param({"__metadata__": 1}, b"", "__metadata__", id="metadata no object"),
        pytest.param(b'{"x": 1, "x": 1}', b"", "twice", id="duplicate"),
        pytest.param(b"[]", b"", "start with", id="list"),
        pytest.param(b"{", b"", "not valid JSON", id="json"),
        pytest.param(b'{"\xff": 1}', b"", "not valid JSON", id="utf-8"),
        pytest.param(b'{"x": ' + b"[" * 100_000 + b"}", b"", "not valid JSON", id="depth"),
        pytest.param(b"", b"", "start with", id="empty header"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, header: Any, data: bytes, complaint: str) -> None:
    with pytest.raises(SafetensorsError) as caught:
        read_layout(write(tmp_path / "m", header, data))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0 bytes"),
        (b"1234567", "7 bytes"),
        (struct.pack("<Q", 100) + b"{}", "claims 100 bytes; the file has 2"),
        (struct.pack("<Q", 1 << 63) + b"{}", "at most"),
    ],
)
def test_broken_lengths_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "m"
    path.write_bytes(content)
    with pytest.raises(SafetensorsError) as caught:
        read_layout(path)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{path} is not a safetensors file")


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(at=st.integers(0, 200), value=st.integers(0, 255))
def test_mutated_header_is_read_or_refused(tmp_path: Path, at: int, value: int) -> None:
    header = {"a": entry("F32", [2], 0, 8), "b": entry("U8", [4], 8, 12), "__metadata__": {"k": "v"}}
    path = write(tmp_path / "m", header, bytes(12))
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content)
    try:
        layout = read_layout(path)
    except SafetensorsError:
        return
    assert sum(tensor.nbytes for tensor in layout.tensors) == layout.data_nbytes
