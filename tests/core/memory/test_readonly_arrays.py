"""Read-only arrays of memory that may be written otherwise: nobody writes through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.options import Options
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import zerohop as zh
    from support.fixtures import OpenContext

NBYTES = 256


def _array(memory: zh.Memory) -> np.ndarray[Any, Any]:
    array = memory.numpy()
    array.flags.writeable = False
    return array


def _part(context: zh.Context) -> zh.Memory:
    return context.pool("host", chunk_bytes=1 << 16).alloc(NBYTES)


MADE: dict[str, Callable[[zh.Context], tuple[zh.Memory, Any]]] = {
    "array": lambda context: (memory := context.alloc(NBYTES), _array(memory)),
    "memoryview": lambda context: (memory := context.alloc(NBYTES), memoryview(memory.numpy().data).toreadonly()),
    "read-only view": lambda context: (memory := context.alloc(NBYTES), memory.view(readonly=True).numpy()),
    "part of a pool": lambda context: (memory := _part(context), _array(memory)),
    "part of an array": lambda context: (memory := context.alloc(NBYTES), _array(memory)[8:]),
}


@pytest.mark.parametrize("kind", MADE)
def test_nobody_writes(open_context: OpenContext, kind: str) -> None:
    owner, context = open_context(Options()), open_context(Options())
    memory, array = MADE[kind](context)
    memory.fill(7)
    nbytes = memoryview(array).nbytes
    source = owner.alloc(nbytes)
    source.fill(9)
    handle = source.share("r")
    connection = context.connect(owner.url).result(PATIENCE_S)
    with pytest.raises(ValueError, match="read-only"):
        context.read(handle, array)
    with pytest.raises(ValueError, match="read-only"):
        connection.recv(array)
    registered = context.register(array)
    assert registered.readonly
    assert registered.rights == "r"
    assert registered[:8].readonly
    assert not registered.numpy().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        context.read(handle, registered)
    with pytest.raises(ValueError, match="read-only"):
        registered.write_bytes(0, b"x")
    assert set(memory.read_bytes()) == {7}
    # The memory itself is written as before.
    context.read(handle, memory[:nbytes]).result(PATIENCE_S)
    assert set(memory.read_bytes(0, nbytes)) == {9}


def test_an_array_with_a_mask(open_context: OpenContext) -> None:
    context = open_context(Options())
    with pytest.raises(TypeError, match="mask would be lost"):
        context.register(np.ma.masked_equal(np.arange(8), 3))
