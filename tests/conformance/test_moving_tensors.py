"""Tensors that get other memory after they were registered: nobody reaches memory that was freed, and nobody is told
that bytes have arrived that have not."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.pattern import expect_equal, pattern
from support.peer import Peer
from support.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)

# More than malloc takes from its heap: freed memory of this size is unmapped, and touching it ends the process.
NBYTES = 4 << 20


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # torch keeps the threads that it once started


def _replace_data(tensor: Any) -> None:
    tensor.data = torch.zeros(8, dtype=torch.uint8)


def _set(tensor: Any) -> None:
    tensor.set_(torch.zeros(8, dtype=torch.uint8))


REPLACED: dict[str, Callable[[Any], None]] = {"data": _replace_data, "set_": _set}


@pytest.mark.parametrize("how", REPLACED)
def test_a_tensor_that_gets_another_storage(world: World, how: str) -> None:
    """Its Memory stays what it was: peers reach the old bytes, which nobody else has."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    with world.here.register(tensor) as memory:
        handle = bytes(memory.share("rw"))
        REPLACED[how](tensor)
        gc.collect()
        target = world.target("numpy", NBYTES)
        target.fill(0, NBYTES, 1)
        assert world.there.call(Service.write, handle, target.number, 0, NBYTES) == NBYTES
        assert tensor.tolist() == [0] * 8
        expect_equal(memory.numpy(), pattern(1, NBYTES), "the bytes that were registered")
        assert world.there.call(Service.read, handle, target.number, 0, NBYTES) == NBYTES


def test_a_module_that_is_converted(world: World) -> None:
    module = torch.nn.Linear(1000, 1000)
    with world.here.register(module.weight) as memory:
        handle = bytes(memory.share("rw"))
        module.half()
        target = world.target("numpy", NBYTES)
        nbytes = memory.nbytes
        assert world.there.call(Service.read, handle, target.number, 0, nbytes) == nbytes
        assert world.here.write(module.weight, target.handle[: nbytes // 2]).result(PATIENCE_S) == nbytes // 2
        assert target.get(0, nbytes // 2) == module.weight.detach().numpy().tobytes()


def test_a_registered_tensor_is_not_resized(world: World) -> None:
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    with world.here.register(tensor), pytest.raises(RuntimeError, match="resiz"):
        tensor.resize_(2 * NBYTES)


def test_a_tensor_of_a_transfer_may_be_resized_afterwards(world: World) -> None:
    """Nothing of the transfer stays on it; the next one finds where it is."""
    target = world.target("numpy", 2 * NBYTES)
    tensor = torch.full((NBYTES,), 7, dtype=torch.uint8)
    world.here.write(tensor, target.handle[:NBYTES]).result(PATIENCE_S)
    tensor.resize_(2 * NBYTES).fill_(9)
    world.here.write(tensor, target.handle).result(PATIENCE_S)
    assert target.get(0, 2 * NBYTES) == bytes([9]) * (2 * NBYTES)


def _share(tensor: Any) -> None:
    tensor.share_memory_()


def _send_through_a_queue(tensor: Any) -> None:
    tensor.untyped_storage()._share_fd_cpu_()


MOVED: dict[str, Callable[[Any], None]] = {"share_memory_": _share, "as a queue does": _send_through_a_queue}


@pytest.mark.parametrize("how", MOVED)
def test_bytes_that_move_under_their_storage(world: World, how: str) -> None:
    """A peer is refused before any byte is touched, and the owner's next call says what happened."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    memory = world.here.register(tensor)
    view = memory[: NBYTES // 2]
    handle = bytes(memory.share("rw"))
    target = world.target("numpy", NBYTES)
    assert world.here.write(memory, target.handle).result(PATIENCE_S) == NBYTES
    assert world.there.call(Service.write, handle, target.number, 0, NBYTES) == NBYTES
    MOVED[how](tensor)
    outcome = world.there.call(Service.try_write, handle, target.number, NBYTES)
    assert outcome.kind == "AccessDenied"
    assert "moved" in outcome.text
    calls: tuple[Callable[[], object], ...] = (
        lambda: world.here.write(memory, target.handle),
        lambda: world.here.read(target.handle, memory),
        lambda: world.here.write(view, target.handle[: NBYTES // 2]),
        lambda: world.here.write_many([(memory, target.handle)]),
        lambda: world.here.write_pages(memory, target.handle, [0], [0], page_bytes=64),
        lambda: memory.share("r"),
        memory.read_bytes,
        memory.numpy,
    )
    with pytest.raises(zh.Closed, match=r"moved: .* Fix: register it again"):
        calls[0]()
    for call in calls:
        with pytest.raises(zh.Closed):
            call()
    tensor.fill_(5)
    with world.here.register(tensor) as again:
        assert world.there.call(Service.read, bytes(again.share("r")), target.number, 0, NBYTES) == NBYTES
        assert target.get(0, NBYTES) == bytes([5]) * NBYTES


def _of_ctypes(array: Any) -> Any:
    return (ctypes.c_ubyte * array.nbytes).from_buffer(array)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda array: array[4096:],
    "memoryview": lambda array: memoryview(array)[4096:],
    "frombuffer": lambda array: np.frombuffer(memoryview(array), np.uint8),
    "ctypes": _of_ctypes,
    "numpy of ctypes": lambda array: np.frombuffer(_of_ctypes(array), np.uint8),
    "as_array": lambda array: np.ctypeslib.as_array(_of_ctypes(array)),
    "as_ctypes": np.ctypeslib.as_ctypes,
    "as_array of as_ctypes": lambda array: np.ctypeslib.as_array(np.ctypeslib.as_ctypes(array)),
    "as_array of a pointer": lambda array: np.ctypeslib.as_array(
        array.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte)), (array.nbytes,)
    ),
    "as_strided": lambda array: np.lib.stride_tricks.as_strided(array, (NBYTES // 2,), (1,)),
    "PickleBuffer": pickle.PickleBuffer,
}


@pytest.mark.parametrize("how", VIEWS)
def test_views_of_a_tensor_as_an_array(world: World, how: str) -> None:
    """They are watched as the tensor is, whatever lies between."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    memory = world.here.register(VIEWS[how](tensor.numpy()))
    handle = bytes(memory.share("rw"))
    target = world.target("numpy", NBYTES)
    assert world.there.call(Service.write, handle, target.number, 0, memory.nbytes) == memory.nbytes
    tensor.share_memory_()
    outcome = world.there.call(Service.try_write, handle, target.number, memory.nbytes)
    assert outcome.kind == "AccessDenied"
    with pytest.raises(zh.Closed, match="moved"):
        memory.read_bytes()


@pytest.mark.parametrize("position", range(8))
def test_each_call_is_the_first_to_notice(world: World, position: int) -> None:
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    memory = world.here.register(tensor)
    target = world.target("numpy", NBYTES)
    world.here.write(memory, target.handle).result(PATIENCE_S)
    tensor.share_memory_()
    calls: tuple[Callable[[], object], ...] = (
        lambda: world.here.write(memory, target.handle),
        lambda: world.here.read(target.handle, memory),
        lambda: world.here.write(memory[:8], target.handle[:8]),
        lambda: world.here.write_many([(memory[:8], target.handle[:8]), (memory[8:16], target.handle[8:16])]),
        lambda: world.here.read_pages(target.handle, memory, [0], [0], page_bytes=64),
        lambda: memory.share("r"),
        memory.read_bytes,
        memory.numpy,
    )
    with pytest.raises(zh.Closed, match="moved"):
        calls[position]()


@pytest.mark.parametrize("nbytes", [100, 100_000, NBYTES])
def test_a_recv_that_waits_while_its_tensor_moves(world: World, nbytes: int) -> None:
    """The message goes nowhere: the freed block may be another array's by now."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    source = world.target("numpy", nbytes)
    source.fill(0, nbytes, 1)
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    received = connection.recv(world.here.register(tensor)[:nbytes])
    tensor.share_memory_()
    other = np.zeros(NBYTES, np.uint8)
    outcome = world.there.call(Service.try_send, world.here.url, source.number, nbytes)
    assert outcome.kind == "AccessDenied"
    assert "moved" in outcome.text
    with pytest.raises(zh.Closed, match="moved"):
        received.result(PATIENCE_S)
    assert not other.any()
    assert not tensor.any()


def test_a_read_that_is_held_up_while_its_tensor_moves(world: World) -> None:
    nbytes = 64 << 20
    target = world.target("numpy", nbytes)
    target.fill(0, nbytes, 1)
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    memory = world.here.register(tensor)
    world.here.read(target.handle[:64], memory[:64]).result(PATIENCE_S)
    assert isinstance(world.there, Peer)
    world.there.stop()
    try:
        reading = world.here.read(target.handle, memory)
        tensor.share_memory_()
        other = np.zeros(nbytes, np.uint8)
    finally:
        world.there.resume()
    with pytest.raises(zh.Closed, match="moved"):
        reading.result(PATIENCE_S)
    assert not other.any()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_where_tensors_are_made_on_another_device(world: World, device: str) -> None:
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    with torch.device(device), world.here.register(tensor) as memory:
        assert memory.nbytes == NBYTES
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.resize_(2 * NBYTES)


def test_within_a_fake_mode(world: World) -> None:
    """torch makes no real tensor there; the registration is well all the same."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.full((NBYTES,), 3, dtype=torch.uint8)
    target = world.target("numpy", NBYTES)
    with FakeTensorMode(), world.here.register(tensor) as memory:
        world.here.write(memory, target.handle).result(PATIENCE_S)
    assert target.get(0, NBYTES) == bytes([3]) * NBYTES


def test_parameters_stay_free_to_be_swapped(world: World) -> None:
    """torch refuses to swap a tensor that somebody refers to weakly, as ``module.to()`` does in its swap mode."""
    target = world.target("numpy", 4096)
    parameter = torch.nn.Parameter(torch.ones(1024))
    world.here.write(parameter, target.handle).result(PATIENCE_S)
    with world.here.register(parameter):
        assert weakref.getweakrefcount(parameter) == 0
        torch.utils.swap_tensors(parameter, torch.nn.Parameter(torch.zeros(4)))
    assert parameter.tolist() == [0.0] * 4


def test_a_storage_is_registered_once(world: World) -> None:
    """For all tensors over it, and only for as long as it lives."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    with world.here.register(tensor) as first, world.here.register(tensor.view(torch.float32)) as second:
        assert first.local_key == second.local_key
    storage = weakref.ref(tensor.untyped_storage())
    before = world.here.statistics().registrations
    del tensor, first, second
    gc.collect()
    assert storage() is None
    assert world.here.statistics().registrations == before - 1


def test_memory_of_numpy_in_a_tensor(world: World) -> None:
    array = np.zeros(NBYTES, np.uint8)
    target = world.target("numpy", NBYTES)
    target.fill(0, NBYTES, 3)
    world.here.read(target.handle, torch.from_numpy(array)).result(PATIENCE_S)
    expect_equal(array, pattern(3, NBYTES), "read through a tensor")


@pytest.mark.parametrize("form", ["numpy", "memoryview", "slice"])
def test_arrays_that_are_views_of_a_tensor(world: World, form: str) -> None:
    """They move with it, and nobody writes where it was."""
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    array = tensor.numpy()
    x = {"numpy": array, "memoryview": memoryview(array), "slice": array[100:5000]}[form]
    memory = world.here.register(x)
    tensor.share_memory_()
    with pytest.raises(zh.Closed, match="moved"):
        memory.share("rw")
    with pytest.raises(ValueError, match="other memory by now"):
        world.here.register(x)
