"""A GPU's memory by its address: what is registered is the allocation, and it is known by an id and not by where it
lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.buffers import GPUS, OTHER_GPU
from support.gpu_managed import managed_memory
from support.gpu_tensor import GpuTensor
from support.gpu_virtual_memory import GpuSegments
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from support.fixtures import OpenContext

pytestmark = pytest.mark.cuda
NBYTES = 1 << 20
COMES_BACK = 3  # as often an address has to


class DeviceArray:
    """Has the CUDA array interface and nothing else."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (NBYTES,), "typestr": "|u1", "version": 3}


def _raw(memory: zh.Memory, start: int = 0, nbytes: int | None = None) -> tuple[int, int, str]:
    return memory.address + start, memory.nbytes - start if nbytes is None else nbytes, memory.device


def test_parts_share_one_registration(open_context: OpenContext) -> None:
    owner, context = open_context(Options(sim_devices=0)), open_context(Options(sim_devices=0))
    memory = owner.alloc(NBYTES, "cuda:0")
    parts = [context.register(_raw(memory, start, 100)) for start in range(0, NBYTES, 1 << 14)]
    assert context.statistics().registrations == 1
    assert [part.address - memory.address for part in parts] == list(range(0, NBYTES, 1 << 14))
    assert {(part.nbytes, part.device) for part in parts} == {(100, "cuda:0")}


def test_a_list(open_context: OpenContext) -> None:
    owner, context = open_context(Options(sim_devices=0)), open_context(Options(sim_devices=0))
    memory, host = owner.alloc(NBYTES, OTHER_GPU), bytearray(10)
    first, second, third = context.register([_raw(memory), host, _raw(memory, 7, 9)])
    assert (first.device, second.device, third.device) == (OTHER_GPU, "host", OTHER_GPU)
    assert (third.address, third.nbytes) == (memory.address + 7, 9)


def test_a_list_is_registered_whole_or_not_at_all(open_context: OpenContext) -> None:
    context = open_context(Options(sim_devices=0))
    memory = context.alloc(NBYTES, "cuda:0")
    with pytest.raises(TypeError, match="memory is a numpy array"):
        context.register([bytearray(10), object()])
    with pytest.raises(TypeError, match="registered already"):
        context.register([memory])
    with pytest.raises(TypeError, match="list"):
        context.write([bytearray(8)], memory.share("rw")[:8])


def test_freed_memory_is_not_what_comes_after_it(open_context: OpenContext) -> None:
    """The address comes back, the id never does: an older registration, and what peers had of it, is not used."""
    owner, context, peer = (open_context(Options(sim_devices=0)) for _ in range(3))
    target = peer.alloc(NBYTES, OTHER_GPU)
    handle = target.share("rw")
    addresses: set[int] = set()
    round_ = 0
    # The driver frees when it comes to it: an address may come back a few rounds later.
    while round_ - len(addresses) < COMES_BACK:
        round_ += 1
        assert round_ < 100, "the test means nothing where no address ever comes back"
        memory = owner.alloc(NBYTES, "cuda:0")
        addresses.add(memory.address)
        memory.fill(round_)
        context.write(_raw(memory), handle).result(PATIENCE_S)
        assert target.read_bytes(NBYTES - 1) == bytes([round_])
        memory.close()
    assert context.statistics().registrations <= len(addresses)


def test_tensors_of_memory_that_comes_back(open_context: OpenContext) -> None:
    """Tensors of a type that was seen before are looked for by the id of their memory alone."""
    owner, context = open_context(Options(sim_devices=0)), open_context(Options(sim_devices=0))
    came_back, seen = 0, dict[int, object]()
    for _ in range(100):
        memory = owner.alloc(NBYTES, "cuda:0")
        first, second = (context.register(GpuTensor(memory.address + start, 8)) for start in (0, NBYTES - 8))
        assert first._registration is second._registration
        assert (second.address, second.nbytes) == (memory.address + NBYTES - 8, 8)
        came_back += memory.address in seen
        assert seen.get(memory.address) is not first._registration
        seen[memory.address] = first._registration
        if came_back == COMES_BACK:
            return
        memory.close()
    pytest.fail("the test means nothing where no address ever comes back")


def test_tensors_over_several_allocations(open_context: OpenContext) -> None:
    """One that begins in memory which is registered by itself, and goes on behind it, is not taken for a part of it."""
    context = open_context(Options(sim_devices=0))
    with GpuSegments(2) as segments:
        within = context.register(GpuTensor(segments.address + 8, 8))
        across = context.register(GpuTensor(segments.address + 8, segments.segment))
        assert within._registration.nbytes == segments.segment
        assert (across.address, across.nbytes) == (segments.address + 8, segments.segment)
        assert across._registration.nbytes == 2 * segments.segment
        assert context.register(GpuTensor(segments.address + 9, 8))._registration is within._registration
        assert context.register(GpuTensor(segments.address + 9, segments.segment))._registration is across._registration
        context.close()


def test_what_is_not_all_allocated(open_context: OpenContext) -> None:
    context = open_context(Options(sim_devices=0))
    memory = context.alloc(NBYTES, "cuda:0")
    for wrong in ((memory.address, NBYTES * 1000, "cuda:0"), (12345, 10, "cuda:0")):
        with pytest.raises(zh.Unsupported, match="not all allocated on one GPU") as caught:
            context.register(wrong)
        assert caught.value.fix


@pytest.mark.skipif(GPUS < 2, reason="this machine has one GPU")
def test_another_device_than_it_is_on(open_context: OpenContext) -> None:
    owner, context = open_context(Options(sim_devices=0)), open_context(Options(sim_devices=0))
    memory = owner.alloc(NBYTES, "cuda:0")
    with pytest.raises(ValueError, match="not on cuda:1"):
        context.register((memory.address, NBYTES, "cuda:1"))
    with pytest.raises(ValueError, match="no device is called"):
        context.register((memory.address, NBYTES, "cuda:99"))


def test_managed_memory_is_refused(open_context: OpenContext) -> None:
    context = open_context(Options(sim_devices=0))
    target = context.alloc(NBYTES, "cuda:0").share("rw")
    with managed_memory(NBYTES) as address:
        for memory in ((address, NBYTES, "cuda:0"), DeviceArray(address)):
            with pytest.raises(zh.Unsupported, match="managed memory, whose pages move") as caught:
                context.register(memory)
            assert caught.value.fix
            with pytest.raises(zh.Unsupported, match="managed memory, whose pages move"):
                context.write(memory, target)
        assert context.statistics().registrations == 1


def test_what_cannot_be_had(open_context: OpenContext) -> None:
    context = open_context(Options(sim_devices=0))
    with pytest.raises(zh.RegistrationFailed):
        context.alloc(1 << 50, "cuda:0")
    context.alloc(64, "cuda:0").close()


def test_drivers_start_when_they_are_needed(open_context: OpenContext) -> None:
    """A Context that moves host memory does not make its process one that uses GPUs: it may still fork."""
    context = open_context(Options(sim_devices=0, providers=("shm", "tcp")))
    peer = open_context(Options(sim_devices=0, providers=("shm", "tcp")))
    target = peer.alloc(NBYTES)
    context.write(bytearray(NBYTES), target.share("rw")).result(PATIENCE_S)
    assert context._core.devices._by_name is None
    assert any(device.kind == "cuda" for device in context.devices)
