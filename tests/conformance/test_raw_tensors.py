"""Tensors on GPUs that are given to write and read as they are: once registered they are posted natively, unless
something about them is not plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.gpu_tensor import GpuTensor
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.raw_arrays import Lifetimes, LongWay
from zerohop._native import InFlight
from zerohop.core.memory.register import known

if TYPE_CHECKING:
    from support.fixtures import OpenContext

pytestmark = pytest.mark.cuda
NBYTES = 1 << 16
# As long as a tensor, at any place of its allocation.
PART = 4096


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> LongWay:
    return LongWay(monkeypatch)


class Tensors:
    """Memory of a GPU that another library has allocated, and memory of another one that it is written to."""

    def __init__(self, open_context: OpenContext) -> None:
        owner, self.here, self.peer = (open_context(Options(sim_devices=0)) for _ in range(3))
        self.memory = owner.alloc(NBYTES, "cuda:0")
        self.target = self.peer.alloc(PART, OTHER_GPU)
        self.handle = self.target.share("rw")
        # The first of a type, and of an allocation, is looked at closely.
        for _ in range(2):
            self.here.write(self.tensor(0), self.handle).result(PATIENCE_S)

    def tensor(self, start: int, nbytes: int = PART) -> GpuTensor:
        return GpuTensor(self.memory.address + start, nbytes)

    def fill(self, start: int, seed: int) -> bytes:
        data = pattern(seed, PART).tobytes()
        self.memory[start : start + PART].write_bytes(0, data)
        return data


@pytest.fixture
def tensors(open_context: OpenContext) -> Tensors:
    return Tensors(open_context)


def test_tensors_of_one_allocation(tensors: Tensors, long_way: LongWay) -> None:
    for seed, start in enumerate(range(0, NBYTES, PART)):
        data = tensors.fill(start, seed)
        assert tensors.here.write(tensors.tensor(start), tensors.handle).result(PATIENCE_S) == PART
        assert tensors.target.read_bytes() == data
        tensors.fill(start, 99)
        assert tensors.here.read(tensors.handle, tensors.tensor(start)).result(PATIENCE_S) == PART
        assert tensors.memory[start : start + PART].read_bytes() == data
    assert long_way.calls == 0


def test_a_tensor_is_kept_until_its_operation_ends(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes = Lifetimes(monkeypatch)
    operations = [tensors.here.write(tensors.tensor(0), tensors.handle) for _ in range(20)]
    in_flight = sum(isinstance(operation, InFlight) for operation in operations)
    assert lifetimes.made - lifetimes.dropped == in_flight
    for operation in operations:
        operation.result(PATIENCE_S)
    assert lifetimes.made == lifetimes.dropped == len(operations)


def test_a_view_whose_memory_does_not_hold_its_values(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("is_neg", "is_conj"):
        with monkeypatch.context() as patched:
            patched.setattr(GpuTensor, method, lambda _: True)
            with pytest.raises(ValueError, match="does not hold its values"):
                tensors.here.write(tensors.tensor(0), tensors.handle)


def test_what_is_not_dense(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(GpuTensor, "layout", "torch.sparse_coo")
        with pytest.raises(TypeError, match="layout"):
            tensors.here.write(tensors.tensor(0), tensors.handle)
    with monkeypatch.context() as patched:
        patched.setattr(GpuTensor, "is_contiguous", lambda _: False)
        patched.setattr(GpuTensor, "shape", (PART // 2,), raising=False)
        patched.setattr(GpuTensor, "stride", lambda _: (2,), raising=False)
        with pytest.raises(ValueError, match="not contiguous"):
            tensors.here.write(tensors.tensor(0), tensors.handle)


def test_values_in_another_order(tensors: Tensors) -> None:
    """A tensor of several axes is not written where they lie in another order, also where a flat one was before."""
    permuted = tensors.tensor(NBYTES // 2)
    owner = tensors.peer
    whole = owner.alloc(PART, OTHER_GPU)

    class Permuted:
        """The same memory, as an array of which the first axis is the innermost."""

        def __init__(self) -> None:
            self.__cuda_array_interface__ = {
                "data": (whole.address, False),
                "shape": (64, 64),
                "strides": (1, 64),
                "typestr": "|u1",
                "version": 3,
            }

    handle = owner.register(Permuted(), as_bytes=True).share("rw")
    for _ in range(2):
        tensors.here.write(permuted, handle).result(PATIENCE_S)
    permuted.ndim = 2
    with pytest.raises(ValueError, match="the values lie in another order"):
        tensors.here.write(permuted, handle)
    tensors.here.write(permuted, tensors.handle).result(PATIENCE_S)


def test_a_length_that_differs(tensors: Tensors) -> None:
    with pytest.raises(ValueError, match="slice one of them"):
        tensors.here.write(tensors.tensor(0, PART - 1), tensors.handle)


def test_a_storage_that_moves_in_the_middle_of_the_call(
    tensors: Tensors, long_way: LongWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of the tensor before is not used: the long way looks at it again."""
    tensor = tensors.tensor(0)
    data = tensors.fill(PART, 5)
    moved: list[zh.Memory] = []

    def move_after(*arguments: Any) -> zh.Memory | None:
        memory = known(*arguments)
        assert memory is not None
        tensor.storage.move(tensors.memory.address + PART)
        moved.append(memory)
        return memory

    with monkeypatch.context() as patched:
        patched.setattr("zerohop.core.transfers.posting.known", move_after)
        tensors.here.write(tensor, tensors.handle).result(PATIENCE_S)
    assert len(moved) == long_way.calls == 1
    with pytest.raises(zh.Closed, match="moved"):
        tensors.here.write(moved.pop(), tensors.handle)
    assert tensors.target.read_bytes() == data


def test_memory_that_is_freed_and_comes_back(tensors: Tensors, open_context: OpenContext) -> None:
    """The address comes back, the id never does: its new owner's bytes go, by a registration of its own."""
    owner = open_context(Options(sim_devices=0))
    addresses: list[int] = []
    for seed in range(100):
        memory = owner.alloc(NBYTES, "cuda:0")
        addresses.append(memory.address)
        data = pattern(seed, PART).tobytes()
        memory[:PART].write_bytes(0, data)
        for _ in range(2):
            tensors.here.write(GpuTensor(memory.address, PART), tensors.handle).result(PATIENCE_S)
            assert tensors.target.read_bytes() == data
        memory.close()
        if len(addresses) - len(set(addresses)) == 3:
            return
    pytest.fail("the test means nothing where no address ever comes back")
