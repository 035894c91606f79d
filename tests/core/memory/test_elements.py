"""Memory that is allocated with a shape and a type: other libraries show it so, and peers reach its bytes."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

MOST_AXES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32

if TYPE_CHECKING:
    from support.fixtures import OpenContext

TYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int32",
    "uint64",
    "bool",
    "complex64",
    np.int16,
    np.dtype("f4"),
    "half",
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numpy(open_context: OpenContext, dtype: Any) -> None:
    owner, peer = open_context(Options()), open_context(Options())
    memory = owner.alloc((3, 5), dtype=dtype)
    expected = np.dtype(dtype)
    assert (memory.dtype, memory.shape, memory.nbytes) == (expected.name, (3, 5), 15 * expected.itemsize)
    for shown in (memory.numpy(), np.from_dlpack(memory)):
        assert (shown.dtype, shown.shape) == (expected, (3, 5))
        assert shown.__array_interface__["data"][0] == memory.address
    memory.numpy()[:] = np.arange(15).reshape(3, 5) % 2
    into = np.zeros((3, 5), expected)
    peer.read(memory.share("r"), into).result(PATIENCE_S)
    assert (into == memory.numpy()).all()
    assert owner.register(memory.numpy()).reused_registration


@pytest.mark.parametrize("dtype", [None, "uint8"])
@pytest.mark.parametrize(
    "shape", [(3, 4), [3, 4], range(3, 5), array.array("q", [3, 4])], ids=lambda x: type(x).__name__
)
def test_a_shape_is_any_sequence(open_context: OpenContext, shape: Any, dtype: str | None) -> None:
    memory = open_context(Options()).alloc(shape, dtype=dtype)
    assert (memory.shape, memory.nbytes) == ((3, 4), 12)


@pytest.mark.parametrize("dtype", [None, "uint8"])
@pytest.mark.parametrize(
    "shape",
    [
        iter((3, 4)),
        (n for n in (3, 4)),
        {3, 4},
        {3: 4},
        "34",
        b"34",
        bytearray(b"34"),
        memoryview(b"34"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_shape_is_nothing_else(open_context: OpenContext, shape: Any, dtype: str | None) -> None:
    with pytest.raises(TypeError, match="a shape is an int, or a sequence of ints" if dtype else "an int"):
        open_context(Options()).alloc(shape, dtype=dtype)


@pytest.mark.parametrize("shape", [7, (7,), [7]])
def test_bytes(open_context: OpenContext, shape: Any) -> None:
    memory = open_context(Options()).alloc(shape)
    assert (memory.dtype, memory.shape, memory.nbytes) == ("uint8", (7,), 7)
    assert memory.numpy().shape == (7,)


def test_as_many_axes_as_there_may_be(open_context: OpenContext) -> None:
    assert open_context(Options()).alloc((1,) * MOST_AXES, dtype="int16").numpy().ndim == MOST_AXES


def test_parts_are_bytes(open_context: OpenContext) -> None:
    memory = open_context(Options()).alloc((4, 4), dtype="float32")
    assert (memory[8:24].dtype, memory[8:24].shape) == ("uint8", (16,))
    assert memory[:].numpy().shape == (64,)


def test_a_scalar(open_context: OpenContext) -> None:
    memory = open_context(Options()).alloc((), dtype="float64")
    assert memory.nbytes == 8
    memory.numpy()[()] = 1.5
    assert np.frombuffer(memory.read_bytes(), np.float64)[0] == 1.5


@pytest.mark.parametrize(("name", "bits"), [("bfloat16", 16), ("float8_e4m3fn", 8), ("float8_e5m2", 8)])
def test_types_that_numpy_lacks(open_context: OpenContext, name: str, bits: int) -> None:
    memory = open_context(Options()).alloc((2, 3), dtype=name)
    assert (memory.dtype, memory.nbytes) == (name, 6 * bits // 8)
    with pytest.raises(zh.Unsupported, match=f"NumPy has no {name}"):
        memory.numpy()
    assert memory[:].numpy().nbytes == memory.nbytes


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int64"])
def test_torch(open_context: OpenContext, name: str) -> None:
    torch = pytest.importorskip("torch")
    context = open_context(Options())
    for dtype in (name, getattr(torch, name)):
        memory = context.alloc((2, 3), dtype=dtype)
        tensor = torch.from_dlpack(memory)
        assert (tensor.dtype, tuple(tensor.shape), tensor.data_ptr()) == (getattr(torch, name), (2, 3), memory.address)
        assert context.register(tensor).reused_registration


def test_another_order_at_the_peer(open_context: OpenContext) -> None:
    """The handle says that it is an array, so that a permuted one is refused as everywhere."""
    owner, peer = open_context(Options()), open_context(Options())
    handle = owner.alloc((4, 4), dtype="float32").share("rw")
    permuted = peer.register(np.zeros((4, 4), np.float32).T, as_bytes=True)
    with pytest.raises(ValueError, match="order"):
        peer.read(handle, permuted)


def test_on_a_device(open_context: OpenContext) -> None:
    memory = open_context(Options(sim_devices=1)).alloc((4, 8), "sim:0", dtype="int16")
    interface = memory.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"]) == ((4, 8), "<i2")
    bfloat = open_context(Options(sim_devices=1)).alloc((4, 8), "sim:0", dtype="bfloat16")
    assert bfloat.__cuda_array_interface__["shape"] == (64,)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "words"),
    [
        ((0, 3), None, ValueError, "shape"),
        ((-1,), "int8", ValueError, "shape"),
        ((1 << 40, 1 << 40), "int8", ValueError, "shape"),
        ((1,) * 65, None, ValueError, "65 axes: an array has 64 at most"),
        ((1,) * 65, "bfloat16", ValueError, "65 axes: an array has 64 at most"),
        ((1.5,), None, TypeError, "lengths of a shape are ints"),
        ((int,), None, TypeError, "lengths of a shape are ints, not type"),
        ((np.zeros(2),), None, TypeError, "length of a shape must be an int, not ndarray"),
        (int, "int8", TypeError, "a shape is an int, or a sequence of ints, not type"),
        (True, "int8", TypeError, "lengths of a shape are ints"),
        ("ab", "int8", TypeError, "a shape is an int, or a sequence"),
        (4, "nope", TypeError, "no type of elements"),
        (4, 5, TypeError, "no type of elements"),
        (4, "\ud800", TypeError, "no type of elements"),
        (4, "(2,f4", TypeError, "no type of elements"),
        (4, "O", TypeError, "cannot be allocated"),
        (4, "U3", TypeError, "cannot be allocated"),
        (4, ">i4", ValueError, "byte order"),
    ],
)
def test_what_cannot_be_allocated(
    open_context: OpenContext, shape: Any, dtype: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_context(Options()).alloc(shape, dtype=dtype)
