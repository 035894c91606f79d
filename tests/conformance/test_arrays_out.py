"""Memory as an array of another library, by DLPack: no copy, and it stays as long as the array."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext

NBYTES = 4096
LIMIT_S = PATIENCE_S


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(Options())


@pytest.fixture
def memory_pool(context: zh.Context) -> Iterator[zh.Pool]:
    with context.pool("host", chunk_bytes=NBYTES, max_bytes=NBYTES) as made:
        yield made


def test_the_bytes_are_the_same(context: zh.Context) -> None:
    memory = context.alloc(NBYTES)
    array = np.from_dlpack(memory)
    assert array.dtype == np.uint8
    assert array.shape == (NBYTES,)
    assert array.__array_interface__["data"][0] == memory.address
    array[:] = 7
    assert memory.read_bytes() == b"\x07" * NBYTES
    part = np.from_dlpack(memory[100:200])
    assert part.shape == (100,)
    part[:] = 8
    assert memory.read_bytes(99, 3) == b"\x07\x08\x08"
    assert memory.__dlpack_device__() == (1, 0)


def test_an_array_keeps_its_memory(memory_pool: zh.Pool, context: zh.Context) -> None:
    array = np.from_dlpack(memory_pool.alloc(NBYTES))
    array[:] = 5
    with pytest.raises(zh.RegistrationFailed, match="no room"):
        memory_pool.alloc(1, timeout=0)
    # What it is part of is registered already, and found again.
    again = context.register(array)
    assert again.read_bytes() == b"\x05" * NBYTES
    assert context.statistics().registrations == 2
    del array
    with pytest.raises(zh.RegistrationFailed, match="no room"):
        memory_pool.alloc(1, timeout=0)
    del again
    gc.collect()
    assert memory_pool.alloc(NBYTES).nbytes == NBYTES


def test_an_array_of_what_was_closed(memory_pool: zh.Pool, context: zh.Context) -> None:
    """The bytes stay, and can be registered again; they are nobody else's."""
    memory = memory_pool.alloc(NBYTES)
    array = np.from_dlpack(memory)
    array[:] = 6
    memory.close()
    with pytest.raises(zh.Closed):
        np.from_dlpack(memory)
    with pytest.raises(zh.RegistrationFailed, match="no room"):
        memory_pool.alloc(1, timeout=0)
    assert context.register(array).read_bytes() == b"\x06" * NBYTES
    del array
    assert memory_pool.alloc(NBYTES).nbytes == NBYTES


def test_it_outlives_the_context(open_context: OpenContext) -> None:
    context = open_context(Options())
    kept = [np.from_dlpack(context.alloc(NBYTES)), np.from_dlpack(context.pool("host").alloc(NBYTES))]
    for array in kept:
        array[:] = 3
    context.close()
    for array in kept:
        assert array.tobytes() == b"\x03" * NBYTES


def test_read_only_memory_stays_so(context: zh.Context) -> None:
    memory = context.register(b"\x01" * NBYTES)
    array = np.from_dlpack(memory)
    assert not array.flags.writeable
    with pytest.raises(BufferError):
        memory.__dlpack__()  # as who knows no version of DLPack with read-only tensors calls it


def test_memory_that_nobody_else_knows(context: zh.Context) -> None:
    memory = context.alloc(NBYTES, "sim:0")
    with pytest.raises(BufferError, match="none that other libraries know"):
        memory.__dlpack_device__()
    with pytest.raises(BufferError, match=r"read_bytes\(\)"):
        memory.__dlpack__()


def test_a_copy_is_not_made(context: zh.Context) -> None:
    with pytest.raises(BufferError):
        context.alloc(NBYTES).__dlpack__(copy=True)


def test_torch(memory_pool: zh.Pool, context: zh.Context) -> None:
    torch: Any = pytest.importorskip("torch")
    tensor = torch.from_dlpack(memory_pool.alloc(NBYTES)).view(torch.float32).view(32, 32)
    tensor.fill_(1.5)
    memory = context.register(tensor)
    assert memory.read_bytes() == np.full(1024, 1.5, np.float32).tobytes()
    assert context.statistics().registrations == 2
    del tensor, memory
    assert memory_pool.alloc(NBYTES).nbytes == NBYTES
