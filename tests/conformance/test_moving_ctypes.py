"""Objects of ctypes that are resized after they were registered: no peer reaches the memory that was freed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

pytestmark = pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)

# Less than malloc maps by itself, so that what is longer is elsewhere.
NBYTES = 64 << 10


class _Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_ubyte * NBYTES), ("second", ctypes.c_ubyte * NBYTES))


BYTES = ctypes.POINTER(ctypes.c_ubyte)


SHOWN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda pair: pair,
    "a field": lambda pair: pair.second,
    "memoryview": lambda pair: memoryview(pair.second).cast("B")[16:],
    "numpy": lambda pair: np.frombuffer(pair, np.uint8),
    "as_array": lambda pair: np.ctypeslib.as_array(pair.second)[16:],
    "as_ctypes": lambda pair: np.ctypeslib.as_ctypes(np.frombuffer(pair, np.uint8)),
    "as_strided": lambda pair: np.lib.stride_tricks.as_strided(np.frombuffer(pair, np.uint8), (NBYTES,), (1,)),
    "from_buffer": lambda pair: (ctypes.c_ubyte * NBYTES).from_buffer(pair, 16),
    "pointer": lambda pair: np.ctypeslib.as_array(ctypes.cast(ctypes.pointer(pair), BYTES), (NBYTES,)),
    "pointer of a pointer": lambda pair: (
        ctypes.cast(ctypes.cast(ctypes.pointer(pair), BYTES), ctypes.POINTER(_Pair)).contents
    ),
}


@pytest.mark.parametrize("how", SHOWN)
def test_a_peer_is_refused(world: World, how: str) -> None:
    pair = _Pair()
    memory = world.here.register(SHOWN[how](pair))
    handle = memory[:4096].share("rw")
    target = world.target("numpy", NBYTES)
    assert world.there.call(Service.write, bytes(handle), target.number, 0, 4096) == 4096
    before = ctypes.addressof(pair)
    ctypes.resize(pair, 8 << 20)
    assert ctypes.addressof(pair) != before
    outcome = world.there.call(Service.try_write, bytes(handle), target.number, 4096)
    assert (outcome.kind, "moved" in outcome.text) == ("AccessDenied", True)
    with pytest.raises(zh.Closed, match=r"moved: .*ctypes\.resize"):
        world.here.write(memory[:4096], target.handle[:4096])
    with world.here.register(SHOWN[how](pair)) as again:
        assert world.here.read(target.handle[:4096], again[:4096]).result(PATIENCE_S) == 4096


def test_an_object_that_cannot_be_resized(world: World) -> None:
    """It shows memory of another, which is watched or holds still."""
    shown = (ctypes.c_ubyte * NBYTES).from_buffer(bytearray(NBYTES))
    with pytest.raises(ValueError, match="doesn't own it"):
        ctypes.resize(shown, 2 * NBYTES)
    with world.here.register(shown) as memory:
        target = world.target("numpy", NBYTES)
        assert world.here.read(target.handle, memory).result(PATIENCE_S) == NBYTES
