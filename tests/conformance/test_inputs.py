"""Everything that may stand where memory is expected, as source, as destination and shared with a peer."""

from __future__ import annotations

import array
import copy
import ctypes
import gc
import mmap
import pickle
from multiprocessing import shared_memory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.pattern import expect_equal, pattern
from support.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.pattern import Bytes
    from support.world import Target, World

NBYTES = 60_000

# One provider that maps, one that does not; the other matrix is in test_contiguous.
pytestmark = pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)


class OnlyDLPack:
    """What a framework without the buffer protocol offers."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __dlpack__(self, **asked: Any) -> Any:
        return self.inner.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self.inner.__dlpack_device__()


def _through_numpy(view: Bytes, make: Callable[[Bytes], object]) -> tuple[object, Bytes]:
    return make(view), view


def _bytearray() -> tuple[object, Bytes]:
    raw = bytearray(NBYTES)
    return raw, np.frombuffer(raw, np.uint8)


def _array() -> tuple[object, Bytes]:
    raw = array.array("d", bytes(NBYTES))
    return raw, np.frombuffer(raw, np.uint8)


def _ctypes() -> tuple[object, Bytes]:
    raw = (ctypes.c_double * (NBYTES // 8))()
    return raw, np.frombuffer(memoryview(raw).cast("B"), np.uint8)


def _anonymous_mmap() -> tuple[object, Bytes]:
    raw = mmap.mmap(-1, NBYTES)
    return raw, np.frombuffer(raw, np.uint8)


FORMS: dict[str, Callable[[], tuple[object, Bytes]]] = {
    "uint8": lambda: _through_numpy(np.zeros(NBYTES, np.uint8), lambda view: view),
    "float64 matrix": lambda: _through_numpy(
        np.zeros(NBYTES, np.uint8), lambda view: view.view(np.float64).reshape(75, 100)
    ),
    "part of an array": lambda: _through_numpy(np.zeros(NBYTES + 77, np.uint8)[33 : 33 + NBYTES], lambda view: view),
    "memoryview": lambda: _through_numpy(np.zeros(NBYTES, np.uint8), lambda view: view.data),
    "dlpack": lambda: _through_numpy(np.zeros(NBYTES, np.uint8), OnlyDLPack),
    "dlpack float32": lambda: _through_numpy(
        np.zeros(NBYTES, np.uint8), lambda view: OnlyDLPack(view.view(np.float32).reshape(3, -1))
    ),
    "raw pointer": lambda: _through_numpy(np.zeros(NBYTES, np.uint8), lambda view: (view.ctypes.data, NBYTES, "host")),
    "bytearray": _bytearray,
    "array.array": _array,
    "ctypes": _ctypes,
    "mmap": _anonymous_mmap,
}


def _round_trip(world: World, given: object, view: Bytes) -> None:
    """As a source, as a destination, and as what a peer writes to and reads from."""
    target = world.target("numpy", NBYTES)
    view[:] = pattern(1, NBYTES)
    assert world.here.write(given, target.handle).result(PATIENCE_S) == NBYTES
    target.expect(0, NBYTES, 1)
    target.fill(0, NBYTES, 2)
    assert world.here.read(target.handle, given).result(PATIENCE_S) == NBYTES
    expect_equal(view, pattern(2, NBYTES), "read into it")
    with world.here.register(given) as memory:
        assert memory.nbytes == NBYTES
        assert memory.device == "host"
        assert memory.rights == "rw"
        handle = bytes(memory.share("rw"))
        target.fill(0, NBYTES, 3)
        assert world.there.call(Service.write, handle, target.number, 0, NBYTES) == NBYTES
        expect_equal(view, pattern(3, NBYTES), "written by the peer")
        view[:] = pattern(4, NBYTES)
        assert world.there.call(Service.read, handle, target.number, 0, NBYTES) == NBYTES
        target.expect(0, NBYTES, 4)


@pytest.mark.parametrize("form", FORMS)
def test_host_memory(world: World, form: str) -> None:
    given, view = FORMS[form]()
    _round_trip(world, given, view)


@pytest.mark.parametrize("form", ["object", "array", "buf"])
def test_shared_memory(world: World, form: str) -> None:
    """`multiprocessing.shared_memory`, whole, as an array over it, and as its buffer: mapped by peers in each form."""
    block = shared_memory.SharedMemory(create=True, size=NBYTES)
    try:
        view = np.ndarray(NBYTES, np.uint8, buffer=block.buf)
        given: dict[str, object] = {"object": block, "array": view, "buf": block.buf}
        _round_trip(world, given[form], view)
        with world.here.register(given[form]) as memory:
            assert memory.share("r").revocation == "by agreement"
        given.clear()
        del view
    finally:
        block.close()
        block.unlink()


def test_shared_memory_that_is_dropped(world: World) -> None:
    """The Memory keeps it mapped; with the Memory it goes, and leaves nothing behind."""
    block = shared_memory.SharedMemory(create=True, size=NBYTES)
    name = block.name
    memory = world.here.register(block)
    memory.write_bytes(0, b"kept")
    del block
    gc.collect()
    assert memory.read_bytes(0, 4) == b"kept"
    target = world.target("numpy", NBYTES)
    assert world.here.write(memory, target.handle).result(PATIENCE_S) == NBYTES
    target.fill(0, NBYTES, 1)
    assert world.here.read(target.handle, memory).result(PATIENCE_S) == NBYTES
    assert memory.read_bytes() == pattern(1, NBYTES).tobytes()
    memory.close()
    again = shared_memory.SharedMemory(name)
    again.close()
    again.unlink()


def test_shared_memory_that_is_closed(world: World) -> None:
    """It cannot be, for as long as it is registered."""
    block = shared_memory.SharedMemory(create=True, size=NBYTES)
    with world.here.register(block) as memory:
        memory.write_bytes(0, b"kept")
        with pytest.raises(BufferError):
            block.close()
        assert memory.read_bytes(0, 4) == b"kept"
    block.close()
    block.unlink()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "shared"])
def test_torch_on_the_cpu(world: World, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # torch keeps the threads that it once started
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    if dtype == "shared":
        tensor.share_memory_()
    view = tensor.numpy()
    given = tensor if dtype == "shared" else tensor.view(getattr(torch, dtype)).reshape(100, -1)
    _round_trip(world, given, view)
    trained = torch.zeros(NBYTES // 4, requires_grad=True)
    with world.here.register(trained) as memory:
        assert memory.nbytes == NBYTES


class DeviceArray:
    """What a framework's array on a device offers."""

    def __init__(self, interface: dict[str, object]) -> None:
        self.__cuda_array_interface__ = interface


def _device_array(address: int, nbytes: int, typestr: str = "|u1", *, readonly: bool = False) -> object:
    return DeviceArray(
        {
            "data": (address, readonly),
            "shape": (nbytes // np.dtype(typestr).itemsize,),
            "typestr": typestr,
            "strides": None,
            "version": 3,
        }
    )


@pytest.mark.parametrize("form", ["cuda array interface", "float32 interface", "raw pointer", "part of it"])
def test_device_memory(world: World, form: str) -> None:
    """Memory of a sim device by its address, as a framework would give it."""
    offset = 128 if form == "part of it" else 0
    owned = world.here.alloc(NBYTES + offset, device="sim:1")
    target = world.target("numpy", NBYTES)
    try:
        address = owned.address + offset
        forms: dict[str, object] = {
            "cuda array interface": _device_array(address, NBYTES),
            "float32 interface": _device_array(address, NBYTES, "<f4"),
            "raw pointer": (address, NBYTES, "sim:1"),
            "part of it": _device_array(address, NBYTES),
        }
        given = forms[form]
        owned.write_bytes(offset, pattern(1, NBYTES).tobytes())
        assert world.here.write(given, target.handle).result(PATIENCE_S) == NBYTES
        target.expect(0, NBYTES, 1)
        with world.here.register(given) as memory:
            assert memory.device == "sim:1"
            assert memory.address == address
            handle = bytes(memory.share("rw"))
            target.fill(0, NBYTES, 2)
            assert world.there.call(Service.write, handle, target.number, 0, NBYTES) == NBYTES
        expect_equal(np.frombuffer(owned.read_bytes(offset, NBYTES), np.uint8), pattern(2, NBYTES), "device memory")
    finally:
        owned.close()


def test_device_memory_that_is_none(world: World) -> None:
    """Addresses that belong to no device, or not to the one named, or reach beyond their allocation."""
    owned = world.here.alloc(4096, device="sim:0")
    try:
        for given in (
            (owned.address, 4096, "sim:1"),
            (owned.address, 1 << 30, "sim:0"),
            (owned.address + 4096, 64, "sim:0"),
            (4096, 64, "sim:0"),
            (owned.address, 4096, "host"),
            (owned.address, 4096, "sim:7"),
            (owned.address, 4096, "cuda:0"),
            (owned.address, 4096, "nonsense"),
            _device_array(4096, 64),
        ):
            with pytest.raises((ValueError, zh.RegistrationFailed, zh.Unsupported, zh.AccessDenied)):
                world.here.register(given)
    finally:
        owned.close()


class OfAnotherKind:
    """Nothing that has memory."""


BAD: dict[str, tuple[object, type[Exception]]] = {
    "strided": (np.zeros((10, 10), np.uint8)[:, :5], ValueError),
    "every second": (np.zeros(10, np.uint8)[::2], ValueError),
    "objects": (np.array([object()]), TypeError),
    "none": (None, TypeError),
    "text": ("text", TypeError),
    "number": (5, TypeError),
    "anything": (OfAnotherKind(), TypeError),
    "two-tuple": ((4096, 64), TypeError),
    "null pointer": ((0, 64, "host"), ValueError),
    "negative length": ((4096, -1, "host"), ValueError),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_memory(world: World, what: str) -> None:
    given, error = BAD[what]
    target = world.target("numpy", 64)
    with pytest.raises(error):
        world.here.register(given)
    with pytest.raises(error):
        world.here.write(given, target.handle)
    with pytest.raises(error):
        world.here.read(target.handle, given)
    target.expect_poison()


@pytest.mark.parametrize("device", ["host", "sim:0"])
@pytest.mark.parametrize("data", [5, [1, 2], "text", None])
def test_bytes_that_are_none(world: World, device: str, data: object) -> None:
    """A number is no length: nothing is written."""
    with world.here.alloc(64, device) as memory:
        memory.fill(7)
        with pytest.raises(TypeError):
            memory.write_bytes(0, data)  # type: ignore[arg-type]
        assert memory.read_bytes() == b"\7" * 64


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_bytes_from_any_buffer(world: World, device: str) -> None:
    values = np.arange(16, dtype=np.uint16)
    with world.here.alloc(32, device) as memory:
        for data in (values.tobytes(), bytearray(values.tobytes()), values.data, values):
            memory.fill(0)
            memory.write_bytes(0, data)  # type: ignore[arg-type]
            assert memory.read_bytes() == values.tobytes()
        memory.write_bytes(0, values.data[::2])
        assert memory.read_bytes(0, 16) == values[::2].tobytes()


@pytest.mark.parametrize("device", ["host", "sim:0"])
def test_integers_of_numpy(world: World, device: str) -> None:
    with world.here.alloc(np.int64(64), device) as memory:
        assert memory.nbytes == 64
        memory.write_bytes(np.int64(3), b"abc")
        assert memory.read_bytes(np.int64(3), np.uint8(3)) == b"abc"
        assert len(memory.read_bytes(np.int32(60))) == 4
        for wrong in (1.0, "1", None):
            with pytest.raises(TypeError):
                memory.read_bytes(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                memory.write_bytes(wrong, b"abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [True, 5.0, np.float64(5), "5", None, np.zeros(2, np.int64)])
def test_lengths_that_are_none(world: World, nbytes: Any) -> None:
    with pytest.raises(TypeError):
        world.here.alloc(nbytes)


def test_flush_takes_a_connection_of_its_own_context(world: World) -> None:
    target = world.target("numpy", 64)
    for wrong in (target.handle, "x", 5):
        with pytest.raises(TypeError, match="flush takes a Connection"):
            world.here.flush(wrong)  # type: ignore[arg-type]
    with zh.Context(providers=[world.provider]) as other:
        connection = other.connect(world.there.identity.url).result(PATIENCE_S)
        with pytest.raises(ValueError, match="another Context"):
            world.here.flush(connection)
        assert other.flush(connection).result(PATIENCE_S) == 0


def test_revoke_takes_a_handle(world: World) -> None:
    with world.here.alloc(64) as memory:
        for wrong in (b"x", bytes(memory.share()), 5, memory):
            with pytest.raises(TypeError, match="RemoteBuffer"):
                memory.revoke(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [zh.wait_all, zh.as_completed])
def test_waits_take_operations(world: World, wait: Any) -> None:
    """Said by the call, and not by the wait."""
    target = world.target("numpy", 64)
    write = world.here.write(bytes(64), target.handle)
    with pytest.raises(TypeError, match="Operations, not int"):
        wait([write, 1])
    write.result(PATIENCE_S)
    with pytest.raises(TypeError):
        wait(None)


class TestWhatStaysInItsProcess:
    """A copy would be a second owner: of memory that the first one frees, of an outcome that it takes over."""

    @pytest.fixture(params=["memory", "view", "context", "connection", "finished", "in flight", "notification"])
    def one(self, request: pytest.FixtureRequest, world: World) -> Iterator[tuple[object, str]]:
        connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
        target = world.target("numpy", 64)
        memory = world.here.alloc(64)
        waiting = connection.recv(bytearray(8))
        note = world.here.notification(PATIENCE_S)
        write = world.here.write(memory, target.handle)
        write.result(PATIENCE_S)
        yield {
            "memory": (memory, "share()"),
            "view": (memory[:8], "share()"),
            "context": (world.here, "url"),
            "connection": (connection, "url"),
            "finished": (write, "result()"),
            "in flight": (waiting, "result()"),
            "notification": (note, "result()"),
        }[request.param]
        waiting.cancel()
        note.cancel()
        memory.close()

    @pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_it(self, one: tuple[object, str], how: Callable[[object], object]) -> None:
        value, instead = one
        with pytest.raises(TypeError, match="stays in its process") as caught:
            how(value)
        assert instead in str(caught.value)

    def test_but_a_handle_is_a_value(self, world: World) -> None:
        with world.here.alloc(64) as memory:
            handle = memory.share()
            assert copy.copy(handle) == copy.deepcopy(handle) == pickle.loads(pickle.dumps(handle)) == handle


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
class TestArguments:
    """Where the way is still to be found, and where it is known."""

    @pytest.fixture
    def pair(self, world: World, known: bool) -> tuple[Target, zh.Memory]:
        target, mine = world.target("alloc", 64), world.buffer("alloc", 64)
        if known:
            world.here.read(target.handle, mine.memory).result(PATIENCE_S)
        return target, mine.memory

    def test_handles_and_memories_in_each_others_places(self, world: World, pair: tuple[Target, Any]) -> None:
        target, memory = pair
        handle: Any = target.handle
        no_handle: Any = bytes(handle)
        with pytest.raises(TypeError):
            world.here.write(memory, memory)
        with pytest.raises(TypeError):
            world.here.write(handle, handle)
        with pytest.raises(TypeError):
            world.here.read(memory, handle)
        with pytest.raises(TypeError):
            world.here.write(memory, no_handle)
        target.expect_poison()

    def test_too_few_too_many_and_unknown_ones(self, world: World, pair: tuple[Target, Any]) -> None:
        target, memory = pair
        write: Any = world.here.write
        read: Any = world.here.read
        calls: list[Callable[[], object]] = [
            lambda: write(memory),
            lambda: write(memory, target.handle, 1),
            lambda: write(memory, target.handle, notice=1),
            lambda: read(target.handle),
            lambda: read(target.handle, memory, 1),
            lambda: read(target.handle, memory, notice=1),
            lambda: read(target.handle, memory, into=memory),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                call()
        target.expect_poison()

    def test_by_name(self, world: World, pair: tuple[Target, zh.Memory]) -> None:
        target, memory = pair
        memory.write_bytes(0, pattern(1, 64).tobytes())
        assert world.here.write(src=memory, dst=target.handle, timeout=10).result(PATIENCE_S) == 64
        memory.write_bytes(0, bytes(64))
        assert world.here.read(src=target.handle, into=memory, timeout=10).result(PATIENCE_S) == 64
        assert memory.read_bytes() == pattern(1, 64).tobytes()

    def test_unequal_lengths(self, world: World, pair: tuple[Target, zh.Memory]) -> None:
        target, memory = pair
        for here, there in ((64, 63), (63, 64), (0, 1)):
            with pytest.raises(ValueError, match=f"{here} bytes here and {there} there"):
                world.here.read(target.handle[:there], memory[:here])
            with pytest.raises(ValueError, match=f"{here} bytes here and {there} there"):
                world.here.write(memory[:here], target.handle[:there])
        target.expect_poison()

    def test_without_the_right(self, world: World, known: bool) -> None:
        """The way that a write has found takes no read that the handle is not for, and the other way round."""
        memory = world.buffer("alloc", 64).memory
        memory.write_bytes(0, bytes(64))
        for_writing, for_reading = world.target("alloc", 64, "w"), world.target("alloc", 64, "r")
        if known:
            assert world.here.write(memory, for_writing.handle).result(PATIENCE_S) == 64
            assert world.here.read(for_reading.handle, memory).result(PATIENCE_S) == 64
        memory.write_bytes(0, pattern(1, 64).tobytes())
        with pytest.raises(zh.AccessDenied, match="rights"):
            world.here.read(for_writing.handle, memory).result(PATIENCE_S)
        assert memory.read_bytes() == pattern(1, 64).tobytes()
        with pytest.raises(zh.AccessDenied, match="rights"):
            world.here.write(memory, for_reading.handle).result(PATIENCE_S)
        for_reading.expect_poison()


def test_the_memory_of_another_context(world: World) -> None:
    """A Memory belongs to the Context that registered it."""
    with zh.Context(providers=[world.provider]) as other:
        target = world.target("numpy", 64)
        memory = other.alloc(64)
        with pytest.raises((ValueError, TypeError)):
            world.here.write(memory, target.handle)
        target.expect_poison()
