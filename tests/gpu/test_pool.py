"""Tensors in memory of a Pool: no copy, no registration each, and nothing is used again too early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import zerohop as zh
from gpu.others import Other
from support.first_gpu import Still
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

torch: Any = pytest.importorskip("torch")
MIB = 1 << 20
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options(sim_devices=0))


@pytest.fixture
def memory_pool(context: zh.Context) -> Iterator[zh.Pool]:
    with context.pool("cuda:0", chunk_bytes=64 * MIB, max_bytes=64 * MIB) as made:
        yield made


def tensor_in(memory_pool: zh.Pool, nbytes: int) -> Any:
    tensor = torch.from_dlpack(memory_pool.alloc(nbytes))
    assert (tensor.dtype, tuple(tensor.shape), str(tensor.device)) == (torch.uint8, (nbytes,), "cuda:0")
    return tensor


def test_tensors_go_there_and_back(memory_pool: zh.Pool, context: zh.Context) -> None:
    with Other(16 * MIB) as other:
        tensors = [tensor_in(memory_pool, MIB).fill_(value) for value in range(16)]
        torch.cuda.synchronize()
        for i, tensor in enumerate(tensors):
            context.write(tensor, other.handle[i * MIB : (i + 1) * MIB]).result(PATIENCE_S)
        other.expect(0, b"".join(bytes([value]) * MIB for value in range(16)))
        # The chunk's, and those of the sixteen parts, which no driver was asked for.
        assert context.statistics().registrations == 17
        back = tensor_in(memory_pool, 16 * MIB).view(torch.float32).view(1024, -1)
        context.read(other.handle, back).result(PATIENCE_S)
        assert torch.equal(back.view(-1).view(torch.uint8), torch.cat(tensors))


def test_a_kernel_still_reads_what_was_dropped(
    memory_pool: zh.Pool, context: zh.Context, open_context: OpenContext
) -> None:
    with Other(64 * MIB) as other:
        other.ask("fill", 2)
        tensor = tensor_in(memory_pool, 64 * MIB).fill_(1)
        copy = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        still = Still(open_context(Options(sim_devices=0)))
        with torch.cuda.stream(torch.cuda.ExternalStream(still.number)):
            copy.copy_(tensor)
        del tensor
        with pytest.raises(zh.RegistrationFailed, match="no room"):
            memory_pool.alloc(64 * MIB, timeout=0)
        still.close()
        again = memory_pool.alloc(64 * MIB)
        context.read(other.handle, again).result(PATIENCE_S)
        torch.cuda.synchronize()
        assert (copy != 1).sum().item() == 0
        assert again.read_bytes(5, 3) == b"\x02\x02\x02"


def test_under_capture(memory_pool: zh.Pool, context: zh.Context) -> None:
    """What was never given out can be had; the capture goes on."""
    memory_pool.alloc(MIB).close()
    graph = torch.cuda.CUDAGraph()
    source = torch.zeros(MIB, dtype=torch.uint8, device="cuda:0")
    target = tensor_in(memory_pool, MIB)
    with torch.cuda.graph(graph):
        memory_pool.alloc(MIB).close()
        target.copy_(source)
    source.fill_(9)
    graph.replay()
    torch.cuda.synchronize()
    assert (target != 9).sum().item() == 0
