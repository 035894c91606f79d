"""torch's tensors on a GPU that get other memory after they were registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from gpu.others import Other
from gpu.tensors import blank_tensor, bytes_of, options, random_tensor
from support.patience import PATIENCE_S
from support.sizes import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(60)


def _replace_data(tensor: Any) -> None:
    tensor.data = blank_tensor(8)


def _set(tensor: Any) -> None:
    tensor.set_(blank_tensor(8))


REPLACED: dict[str, Callable[[Any], None]] = {"data": _replace_data, "set_": _set}


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_a_tensor_that_gets_another_storage(open_context: OpenContext, how: str, known: bool) -> None:
    """The Memory keeps the old block: torch gives it to no other tensor, and peers reach it."""
    context = open_context(options())
    with Other(3 * MIB) as other:
        if known:
            context.register(random_tensor(3 * MIB)).close()
        tensor = random_tensor(3 * MIB)
        before = bytes_of(tensor)
        with context.register(tensor) as memory:
            REPLACED[how](tensor)
            others = [blank_tensor(3 * MIB, 9) for _ in range(20)]
            assert memory.read_bytes() == before
            context.write(memory, other.handle).result(PATIENCE_S)
            other.expect(0, before)
            data = random_tensor(3 * MIB)
            context.write(data, other.handle).result(PATIENCE_S)
            context.read(other.handle, memory).result(PATIENCE_S)
            assert memory.read_bytes() == bytes_of(data)
            assert all(bytes_of(each) == bytes([9]) * (3 * MIB) for each in others)


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_a_storage_that_is_freed(open_context: OpenContext, known: bool) -> None:
    """As FSDP does between steps. The owner's next call says so."""
    context = open_context(options())
    with Other(3 * MIB) as other:
        if known:
            context.register(random_tensor(3 * MIB)).close()
        tensor = random_tensor(3 * MIB)
        memory = context.register(tensor)
        context.write(memory, other.handle).result(PATIENCE_S)
        memory.share("rw")
        tensor.untyped_storage().resize_(0)
        with pytest.raises(zh.Closed, match="moved"):
            context.write(memory, other.handle)
        tensor.untyped_storage().resize_(3 * MIB)
        tensor.fill_(5)
        torch.cuda.synchronize()
        context.write(tensor, other.handle).result(PATIENCE_S)
        other.expect(0, bytes([5]) * (3 * MIB))


def test_a_module_that_is_converted(open_context: OpenContext) -> None:
    context = open_context(options())
    with Other(4_000_000) as other:
        module = torch.nn.Linear(1000, 1000, device="cuda:0")
        weight = bytes_of(module.weight.detach())
        with context.register(module.weight) as memory:
            module.half()
            context.write(memory, other.handle).result(PATIENCE_S)
            other.expect(0, weight)
            context.write(module.weight, other.handle[:2_000_000]).result(PATIENCE_S)
            other.expect(0, bytes_of(module.weight.detach()))


def test_permuted_axes(open_context: OpenContext) -> None:
    """Heads before pages, as a KV cache has them; refused, or taken as bytes."""
    context = open_context(options())
    context.register(random_tensor(64)).close()
    with Other(MIB) as other:
        cache = random_tensor(MIB).view(16, 64, 8, 128).permute(0, 2, 1, 3)
        for call in (lambda: context.register(cache), lambda: context.write(cache, other.handle)):
            with pytest.raises(ValueError, match="as_bytes=True"):
                call()
        with context.register(cache, as_bytes=True) as memory:
            context.write(memory, other.handle).result(PATIENCE_S)
            other.expect(0, bytes_of(cache.permute(0, 2, 1, 3)))
