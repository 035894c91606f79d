"""Every kind of memory becomes the right range; whatever is none, or not one range, is refused with words."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import platform
import weakref
from multiprocessing import shared_memory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from zerohop._native import BlockWatch
from zerohop.core.memory import holders, sources, torch_tensors
from zerohop.core.memory.layouts import ROWS
from zerohop.core.memory.source import Source
from zerohop.core.runtime.devices import DEVICE_BY_ADDRESS, HOST

if TYPE_CHECKING:
    from typing_extensions import Self


def address_of(x: np.ndarray[Any, Any]) -> int:
    return int(x.__array_interface__["data"][0])


class TestNumpy:
    def test_a_whole_array(self) -> None:
        x = np.zeros((3, 4), np.float32)
        source = sources.read(x)
        expected = Source(address_of(x), 48, HOST, False, x, address_of(x), 48, x, False, ROWS, hold=weakref.ref(x))
        assert source == expected

    def test_slices_are_of_the_allocation_that_owns_them(self) -> None:
        root = np.zeros((10, 8), np.uint16)
        part = root[2:5][1:]
        source = sources.read(part)
        assert source.cached_by is root
        assert (source.base, source.extent) == (address_of(root), root.nbytes)
        assert (source.offset, source.nbytes) == (3 * 16, 2 * 16)
        assert source.keep is part

    def test_transposed(self) -> None:
        root = np.zeros((3, 4))
        assert sources.read(root.T, as_bytes=True).cached_by is root
        with pytest.raises(ValueError, match="another order in memory"):
            sources.read(root.T)

    @pytest.mark.parametrize("index", [np.s_[::2], np.s_[:, :2], np.s_[::-1]])
    def test_gaps(self, index: Any) -> None:
        with pytest.raises(ValueError, match="ascontiguousarray"):
            sources.read(np.zeros((4, 4))[index])

    def test_read_only(self) -> None:
        x = np.zeros(8)
        x.flags.writeable = False
        assert sources.read(x).readonly

    def test_a_read_only_view_stands_for_itself(self) -> None:
        """Otherwise what may be written through its writable root could be written through it."""
        root = np.zeros(8, np.uint8)
        view = root[2:6]
        view.flags.writeable = False
        source = sources.read(view)
        assert source.readonly
        assert source.cached_by is view
        assert (source.base, source.extent) == (address_of(view), 4)

    def test_objects(self) -> None:
        with pytest.raises(TypeError, match="pointers"):
            sources.read(np.array([None]))

    def test_empty(self) -> None:
        assert sources.read(np.zeros(0)).nbytes == 0


class TestBuffers:
    @pytest.mark.parametrize(
        ("x", "nbytes", "readonly"),
        [
            (b"abc", 3, True),
            (b"", 0, True),
            (bytearray(b"abcd"), 4, False),
            (array.array("d", [1, 2]), 16, False),
            (memoryview(b"abc")[1:], 2, True),
            (memoryview(bytearray(8)).cast("I"), 8, False),
        ],
    )
    def test_lengths_and_rights(self, x: Any, nbytes: int, readonly: bool) -> None:
        source = sources.read(x)
        assert (source.nbytes, source.readonly, source.device) == (nbytes, readonly, HOST)

    def test_addresses(self) -> None:
        x = bytearray(b"hello")
        source = sources.read(x)
        assert source.address == address_of(np.frombuffer(x, np.uint8))

    def test_a_bytearray_cannot_be_resized_meanwhile(self) -> None:
        x = bytearray(8)
        source = sources.read(x)
        with pytest.raises(BufferError):
            x.extend(b"more")
        del source
        x.extend(b"more")

    def test_an_anonymous_mapping(self) -> None:
        with mmap.mmap(-1, 4096) as x:
            source = sources.read(x)
            assert source.nbytes == 4096
            del source

    def test_gaps(self) -> None:
        with pytest.raises(ValueError, match="contiguous"):
            sources.read(memoryview(bytes(8))[::2])

    def test_a_struct_with_an_o_in_a_name(self) -> None:
        class Header(ctypes.Structure):
            _fields_ = [("Offset", ctypes.c_int), ("O", ctypes.c_double)]

        header = Header()
        assert sources.read(header).address == ctypes.addressof(header)
        assert sources.read((Header * 3)()).nbytes == 3 * ctypes.sizeof(Header)
        assert sources.read(np.zeros(3, [("Only", "i4")]).data).nbytes == 12

    def test_a_struct_of_objects(self) -> None:
        class Holder(ctypes.Structure):
            _fields_ = [("x", ctypes.c_int), ("y", ctypes.py_object)]

        with pytest.raises(TypeError, match="pointers"):
            sources.read(Holder())


class TestCudaArrayInterface:
    @staticmethod
    def read(**changes: Any) -> Source:
        interface = {"data": (0x1000, False), "shape": (2, 3), "typestr": "<f4", "strides": None, "version": 3}
        return sources.read(SimpleNamespace(__cuda_array_interface__=interface | changes))

    def test_its_device_is_found_by_address(self) -> None:
        source = self.read()
        assert (source.address, source.nbytes, source.device, source.readonly) == (0x1000, 24, DEVICE_BY_ADDRESS, False)
        assert source.cached_by is None

    def test_read_only(self) -> None:
        assert self.read(data=(0x1000, True)).readonly

    def test_strides_without_gaps(self) -> None:
        assert self.read(strides=(12, 4)).nbytes == 24
        with pytest.raises(ValueError, match="another order in memory"):
            self.read(strides=(4, 8))

    def test_gaps(self) -> None:
        with pytest.raises(ValueError, match="contiguous"):
            self.read(strides=(24, 4))

    def test_bytes_without_an_address(self) -> None:
        with pytest.raises(ValueError, match="no memory"):
            self.read(data=(0, False))
        assert self.read(data=(0, False), shape=(0,)).nbytes == 0


class TestRaw:
    def test_a_range(self) -> None:
        source = sources.read((0x1000, 64, "sim:0"))
        assert (source.address, source.nbytes, source.device) == (0x1000, 64, "sim:0")
        assert source.cached_by is None

    @pytest.mark.parametrize("x", [(), (1, 2), (1, 2, "host", 4), ("1", 2, "host"), (1, 2, 0), (True, 1, "host")])
    def test_not_a_triple_of_the_right_types(self, x: Any) -> None:
        with pytest.raises(TypeError, match="raw memory"):
            sources.read(x)

    @pytest.mark.parametrize(
        "x", [(0, 1, "host"), (-1, 1, "host"), (1, -1, "host"), (4096, 1 << 63, "host"), ((1 << 63) - 1, 2, "host")]
    )
    def test_no_such_range(self, x: Any) -> None:
        with pytest.raises(ValueError, match="no memory"):
            sources.read(x)


class TestDlpack:
    def test_an_exporter(self) -> None:
        root = np.arange(6, dtype=np.int16).reshape(2, 3)
        source = sources.read(Exporter(root))
        assert (source.address, source.nbytes, source.device) == (address_of(root), 12, HOST)

    def test_gaps(self) -> None:
        with pytest.raises(ValueError, match="contiguous"):
            sources.read(Exporter(np.zeros((4, 4))[:, :2]))

    def test_one_from_before_version_1(self) -> None:
        root = np.zeros(4)
        assert sources.read(OldExporter(root)).address == address_of(root)

    def test_a_device(self) -> None:
        root = np.zeros(4)
        source = sources.read(DeviceExporter(root))
        assert (source.address, source.nbytes) == (address_of(root), 32)
        assert source.device == DEVICE_BY_ADDRESS

    def test_memory_whose_pages_move(self) -> None:
        with pytest.raises(zh.Unsupported, match="managed memory is refused: its pages move") as caught:
            sources.read(ManagedExporter(np.zeros(4)))
        assert caught.value.fix


class Exporter:
    """Has DLPack and nothing else."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self._x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OldExporter(Exporter):
    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._x.__dlpack__()


class DeviceExporter(Exporter):
    def __dlpack__(self, **options: Any) -> Any:
        assert options.pop("stream") == -1, "nobody needs to wait for what the exporter has queued"
        return super().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class ManagedExporter(Exporter):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (13, 0)


class TestSharedMemory:
    @pytest.fixture
    def shared(self) -> Any:
        memory = shared_memory.SharedMemory(create=True, size=10_000)
        yield memory
        memory.close()
        try:
            memory.unlink()
        except FileNotFoundError:
            pass

    def test_found_through_an_array_at_an_odd_offset(self, shared: shared_memory.SharedMemory) -> None:
        x = np.ndarray(100, np.uint8, buffer=shared.buf, offset=4099)
        source = sources.read(x)
        assert source.may_be_shared
        with Backed(source) as backing:
            assert backing.offset == 4099
            backing.expect_same_bytes(x)
        del x, source

    def test_found_by_the_object_itself_after_its_name_is_gone(self, shared: shared_memory.SharedMemory) -> None:
        shared.unlink()
        source = sources.read(shared)
        with Backed(source) as backing:
            assert backing.offset == 0
        del source

    def test_not_found_through_an_array_after_its_name_is_gone(self, shared: shared_memory.SharedMemory) -> None:
        shared.unlink()
        x = np.ndarray(100, np.uint8, buffer=shared.buf)
        assert sources.find_backing(sources.read(x)) is None
        del x

    def test_a_file_that_took_over_the_name_is_not_used(self, shared: shared_memory.SharedMemory) -> None:
        shared.unlink()
        other = shared_memory.SharedMemory(shared.name, create=True, size=10_000)
        try:
            x = np.ndarray(100, np.uint8, buffer=shared.buf)
            assert sources.find_backing(sources.read(x)) is None
            del x
        finally:
            other.close()

    def test_one_that_is_closed(self, shared: shared_memory.SharedMemory) -> None:
        shared.close()
        with pytest.raises(ValueError, match="SharedMemory is closed"):
            sources.read(shared)

    def test_private_memory_has_no_file(self) -> None:
        for x in (np.zeros(100_000), bytearray(5000), mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)):
            assert sources.find_backing(sources.read(x)) is None


class Backed:
    """The descriptor behind a source, closed afterwards."""

    def __init__(self, source: Source) -> None:
        backing = sources.find_backing(source)
        assert backing is not None
        self._fd, self.offset = backing

    def __enter__(self) -> Self:
        return self

    def expect_same_bytes(self, x: np.ndarray[Any, Any]) -> None:
        x[:] = 7
        with mmap.mmap(self._fd, 0) as mapped:
            assert mapped[self.offset : self.offset + x.nbytes] == x.tobytes()

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


@pytest.mark.parametrize("x", [None, 5, "text", object(), [1, 2], {}])
def test_what_is_no_memory(x: Any) -> None:
    with pytest.raises(TypeError, match="memory"):
        sources.read(x)


class TestTorch:
    """Where torch is installed."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    def test_a_slice_of_bfloat16(self, torch: Any) -> None:
        x = torch.zeros(100, dtype=torch.bfloat16)
        source = sources.read(x[10:20])
        assert (source.offset, source.nbytes, source.extent) == (20, 20, 200)
        assert source.cached_by is source.keep is x.untyped_storage()

    def test_one_that_requires_a_gradient(self, torch: Any) -> None:
        x = torch.zeros(4, requires_grad=True)
        assert sources.read(x).address == x.data_ptr()

    def test_channels_last_has_no_gaps(self, torch: Any) -> None:
        x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert sources.read(x, as_bytes=True).nbytes == 480

    def test_gaps(self, torch: Any) -> None:
        with pytest.raises(ValueError, match=r"contiguous\(\)"):
            sources.read(torch.zeros(4, 4)[:, :2])

    def test_conjugated(self, torch: Any) -> None:
        with pytest.raises(ValueError, match="resolve_conj"):
            sources.read(torch.zeros(4, dtype=torch.complex64).conj())

    def test_sparse(self, torch: Any) -> None:
        with pytest.raises(TypeError, match="sparse"):
            sources.read(torch.zeros(4).to_sparse())

    @pytest.mark.parametrize("index", [np.s_[2:2], np.s_[:, :0], np.s_[4:]])
    def test_empty_slices(self, torch: Any, index: Any) -> None:
        """torch gives them no address."""
        x = torch.zeros(4, 5)
        source = sources.read(x[index])
        assert (source.nbytes, source.offset, source.extent) == (0, 0, 80)
        assert source.cached_by is x.untyped_storage()

    def test_empty(self, torch: Any) -> None:
        assert sources.read(torch.empty(0)).nbytes == sources.read(torch.empty(0, 3)).nbytes == 0

    def test_meta(self, torch: Any) -> None:
        with pytest.raises(ValueError, match="no memory") as caught:
            sources.read(torch.zeros(4, device="meta"))
        assert "cpu()" not in str(caught.value)

    def test_a_fake_tensor(self, torch: Any) -> None:
        """As torch.compile traces with: registered at address 0 it would end the process at its first use."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            x = torch.ones(4)
        with pytest.raises(ValueError, match="no memory"):
            sources.read(x)

    def test_within_vmap(self, torch: Any) -> None:
        def read(x: Any) -> Any:
            sources.read(x)
            return x

        with pytest.raises(TypeError, match="storage"):
            torch.func.vmap(read)(torch.zeros(3, 4))

    def test_shared_memory_without_a_name(self, torch: Any) -> None:
        x = torch.zeros(1000).share_memory_()
        before = x.data_ptr()
        with Backed(sources.read(x)) as backing:
            assert backing.offset == 0
        assert x.data_ptr() == before


def test_a_shorter_block_at_the_same_address() -> None:
    """As an allocator gives one that had just been freed."""
    torch: Any = pytest.importorskip("torch")
    words = (ctypes.c_uint64 * 2)(1 << 20, 4096)
    watch = BlockWatch(ctypes.addressof(words), 1 << 20, ctypes.addressof(words) + 8, 4096)
    found = []
    for length in (4096, 8192, 4095):
        words[1] = length
        found.append(watch.moved)
    assert found == [False, False, True]
    storage = torch.zeros(4096, dtype=torch.uint8).untyped_storage()
    watched = torch_tensors.watch(storage)
    assert watched is not None
    assert torch_tensors._words[0].length, "where torch keeps the length is not known"
    assert not watched.moved


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the end of user space is known there alone")
@pytest.mark.parametrize("address", [1 << 57, (1 << 62) + 4096])
def test_addresses_that_no_user_space_has(address: int) -> None:
    """The processor names no address in the fault that a touch of them gives."""
    with pytest.raises(ValueError, match="no memory has address"):
        sources.read((address, 4096, "host"))


def test_an_exporter_is_not_asked_for_all_its_bytes() -> None:
    """Images have a property of this name that copies them."""

    class Image:
        @property
        def __array_interface__(self) -> object:
            raise AssertionError("it was asked")

    assert holders.block_behind(Image(), 0, 0, []) is None
