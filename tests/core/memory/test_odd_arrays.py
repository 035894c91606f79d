"""Arrays that count memory twice or step over it, and descriptions of arrays that no memory can have."""

from __future__ import annotations

import ctypes
import mmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.memory import dlpack, sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

NBYTES = 4096
# Each returns an array of bytes whose rows of 64 are contiguous, and lie within the NBYTES of `memory`.
ROOTS: dict[str, Callable[[mmap.mmap], np.ndarray[Any, Any]]] = {
    "windows": lambda memory: sliding_window_view(np.frombuffer(memory, np.uint8), 64, writeable=True),
    "as_strided": lambda memory: as_strided(np.frombuffer(memory, np.uint8), (100, 64), (32, 1)),
    "one row many times": lambda memory: np.ndarray((1000, 64), np.uint8, memory, 0, (0, 1)),
    "rows that overlap": lambda memory: np.ndarray((100, 64), np.uint8, memory, 0, (32, 1)),
    "rows with gaps": lambda memory: np.ndarray((32, 64), np.uint8, memory, 0, (128, 1)),
    "from the end": lambda memory: np.ndarray((64, 64), np.uint8, memory, NBYTES - 64, (-64, 1)),
    "by array interface": lambda memory: np.asarray(
        SimpleNamespace(
            __array_interface__={"shape": (1000, 64), "typestr": "|u1", "data": memory, "strides": (0, 1), "version": 3}
        )
    ),
}


@pytest.mark.parametrize("root", ROOTS)
def test_a_row_registers_nothing_beyond_the_memory(root: str) -> None:
    memory = mmap.mmap(-1, NBYTES)
    start = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    rows = ROOTS[root](memory)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        source = sources.read(row)
        assert (source.address, source.nbytes) == (row.__array_interface__["data"][0], 64)
        assert start <= source.base <= source.address
        assert source.address + source.nbytes <= source.base + source.extent <= start + NBYTES


@pytest.mark.parametrize("root", ROOTS)
def test_the_whole_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=r"not contiguous.* Fix: pass numpy\.ascontiguousarray\(x\)"):
        sources.read(ROOTS[root](mmap.mmap(-1, NBYTES)))


@pytest.mark.parametrize("root", ROOTS)
def test_rows_are_moved(open_context: OpenContext, root: str) -> None:
    context = open_context(Options())
    rows = ROOTS[root](mmap.mmap(-1, NBYTES))
    handle = context.alloc(64).share("rw")
    row = rows[len(rows) // 2]
    row[:] = np.arange(64)
    context.write(row, handle).result(PATIENCE_S)
    row[:] = 0
    context.read(handle, row).result(PATIENCE_S)
    assert row.tolist() == list(range(64))


def test_slices_of_a_buffer_share_its_registration() -> None:
    whole = np.frombuffer(mmap.mmap(-1, NBYTES), np.uint8)
    assert sources.read(whole.reshape(64, 64)[3]).extent == NBYTES


class TestCudaArrayInterface:
    @staticmethod
    def read(**changes: Any) -> None:
        interface = {"data": (0x1000, False), "shape": (2, 3), "typestr": "<f4", "strides": None, "version": 3}
        interface |= changes
        told = {name: value for name, value in interface.items() if value != "none at all"}
        sources.read(SimpleNamespace(__cuda_array_interface__=told))

    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": (-8,)},
            {"shape": (-2, -4)},
            {"shape": (0, -4)},
            {"shape": (-2, -4), "strides": (16, 4)},
            {"shape": (1 << 63,)},
            {"shape": (1 << 32, 1 << 32)},
            {"shape": (1 << 62,), "typestr": "<f8"},
            {"data": ((1 << 64) - 4, False)},
            {"data": (-8, False)},
            {"strides": (4,)},
            {"shape": (2,), "strides": (4, 4)},
        ],
    )
    def test_no_memory_has_these_numbers(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"no (memory|array) has|as many strides"):
            self.read(**changes)

    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": "none at all"},
            {"data": "none at all"},
            {"typestr": "none at all"},
            {"shape": None},
            {"shape": (2.5,)},
            {"data": 5},
            {"data": (1.5, False)},
            {"typestr": "|zz"},
            {"typestr": None},
        ],
    )
    def test_malformed(self, changes: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="the __cuda_array_interface__ of SimpleNamespace is malformed"):
            self.read(**changes)

    def test_objects(self) -> None:
        with pytest.raises(TypeError, match="pointers to Python objects"):
            self.read(typestr="|O8")


class HandMade:
    """Exports by DLPack what numpy would not: an array of 32-bit integers with any numbers."""

    def __init__(
        self, *shape: int, byte_offset: int = 0, device: object = (1, 0), bits: int = 32, lanes: int = 1
    ) -> None:
        self._bytes = (ctypes.c_ubyte * NBYTES)()
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        pointer = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        data = ctypes.addressof(self._bytes)
        self._tensor = dlpack._Tensor(data, 1, 0, len(shape), 0, bits, lanes, pointer, None, byte_offset)
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> object:
        return self._device


class TestDlpack:
    def test_one_that_is_right(self) -> None:
        assert sources.read(HandMade(4, 8)).nbytes == 128

    @pytest.mark.parametrize("shape", [(-8,), (-2, -4), (0, -4), (-(1 << 63),), (1 << 62, 1 << 62), ((1 << 63) - 1,)])
    def test_no_memory_has_this_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"no (memory|array) has"):
            sources.read(HandMade(*shape))

    @pytest.mark.parametrize(("bits", "lanes"), [(0, 1), (32, 0), (0, 0)])
    def test_elements_without_bits(self, bits: int, lanes: int) -> None:
        with pytest.raises(TypeError, match=f"{lanes} lanes of {bits} bits"):
            sources.read(HandMade(8, bits=bits, lanes=lanes))

    @pytest.mark.parametrize("byte_offset", [1 << 63, (1 << 64) - 8])
    def test_no_memory_lies_there(self, byte_offset: int) -> None:
        with pytest.raises(ValueError, match="no memory has address"):
            sources.read(HandMade(8, byte_offset=byte_offset))

    @pytest.mark.parametrize("device", [(), (1,), None, 5])
    def test_a_device_that_is_none(self, device: object) -> None:
        with pytest.raises((ValueError, TypeError)):
            sources.read(HandMade(8, device=device))


@pytest.mark.parametrize("raw", [(0x1000, True, "host"), (True, 8, "host"), (0x1000, 8.0, "host")])
def test_raw_memory_by_numbers_that_are_none(open_context: OpenContext, raw: object) -> None:
    with pytest.raises(TypeError, match="the first two of them ints"):
        open_context(Options()).register(raw)


@pytest.mark.parametrize("nbytes", [-1, 1 << 63])
@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_raw_memory_of_no_length(open_context: OpenContext, nbytes: int, device: str) -> None:
    with pytest.raises(ValueError, match="no memory has address"):
        open_context(Options()).register((0x1000, nbytes, device))
