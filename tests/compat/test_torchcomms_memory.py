"""torchcomms' RdmaMemory and RdmaRemoteBuffer: pickling, views, and numbers that make no sense."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from support.pattern import pattern, poison
from support.torchcomms_peer import pair
from zerohop.compat.torchcomms import (
    COMM_INTERNAL_ERROR,
    COMM_SUCCESS,
    RdmaMemory,
    RdmaRemoteBuffer,
    RdmaTransport,
    attach_rdma_memory_hook,
)

NBYTES = 8192

pytestmark = pytest.mark.usefixtures("own_context")


class TestRemoteBuffers:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, protocol: int) -> None:
        here, _ = pair()
        target = np.zeros(64, np.uint8)
        memory, source = RdmaMemory(target), RdmaMemory(pattern(1, 64))
        remote = pickle.loads(pickle.dumps(memory.to_remote_buffer(), protocol=protocol))
        assert remote == memory.to_remote_buffer()
        assert here.write(source.to_view(), remote) == COMM_SUCCESS
        assert np.array_equal(target, pattern(1, 64))

    def test_is_a_value(self) -> None:
        memory = RdmaMemory(np.zeros(64, np.uint8))
        remote = memory.to_remote_buffer()
        assert (remote.len, hash(remote)) == (64, hash(memory.to_remote_buffer()))
        assert remote.access_key not in repr(remote), "logs do not give the memory away"
        assert remote == RdmaRemoteBuffer(ptr=remote.ptr, len=remote.len, access_key=remote.access_key)

    def test_end_with_the_memory(self) -> None:
        here, _ = pair()
        target = np.zeros(64, np.uint8)
        memory = RdmaMemory(target)
        remote, view = memory.to_remote_buffer(), memory.to_view()
        del memory
        gc.collect()
        source = RdmaMemory(pattern(1, 64))
        assert here.write(source.to_view(), remote) == COMM_SUCCESS, "its view keeps it"
        del view
        gc.collect()
        target[:] = before = poison(64)
        assert here.write(source.to_view(), remote) == COMM_INTERNAL_ERROR
        assert np.array_equal(target, before)


class TestMemory:
    def test_keeps_the_tensor(self) -> None:
        here, _ = pair()
        array = pattern(1, NBYTES).copy()
        gone = weakref.ref(array)
        view = RdmaMemory(array).to_view()
        del array
        gc.collect()
        assert gone() is not None
        target = np.zeros(NBYTES, np.uint8)
        other = RdmaMemory(target)
        assert here.write(view, other.to_remote_buffer()) == COMM_SUCCESS
        assert np.array_equal(target, pattern(1, NBYTES))
        del view
        gc.collect()
        assert gone() is None

    def test_reused_registration(self) -> None:
        array = np.zeros(64, np.uint8)
        first = RdmaMemory(array)
        assert not first.reused_registration()
        assert RdmaMemory(array[8:], cache_reg=True).reused_registration()

    def test_hook(self) -> None:
        attach_rdma_memory_hook(None, None)
        attach_rdma_memory_hook(reg=object(), dereg=object())


@pytest.mark.parametrize("many", [[], [np.zeros(8), np.zeros(8)]], ids=["none", "two"])
def test_a_list_is_no_memory(many: list[Any]) -> None:
    with pytest.raises(TypeError, match="make an RdmaMemory of each"):
        RdmaMemory(many)


@pytest.mark.parametrize(
    ("ptr", "length", "kind", "words"),
    [
        ("x", 8, TypeError, "ptr must be an int, not str"),
        (None, 8, TypeError, "ptr must be an int, not NoneType"),
        (0.5, 8, TypeError, "ptr must be an int, not float"),
        (0, None, TypeError, "len must be an int, not NoneType"),
        (0, 8.0, TypeError, "len must be an int, not float"),
        (0, -1, ValueError, "len must be at least 0"),
        (0, 10**5000, ValueError, "do not lie within"),
        (10**5000, 8, ValueError, "do not lie within"),
    ],
    ids=range(8),  # Python refuses to write some of the numbers
)
def test_a_remote_buffer_of_odd_numbers(ptr: Any, length: Any, kind: type[Exception], words: str) -> None:
    memory = RdmaMemory(np.zeros(64, np.uint8))
    whole = memory.to_remote_buffer()
    at = ptr if ptr != 0 else whole.ptr
    with pytest.raises(kind, match=words):
        RdmaTransport("host").write(memory.to_view(0, 8), RdmaRemoteBuffer(at, length, whole.access_key))


def test_a_remote_buffer_of_numbers_of_numpy() -> None:
    """They are integers, as offsets that a program has computed are."""
    memory = RdmaMemory(np.arange(64, dtype=np.uint8))
    whole = memory.to_remote_buffer()
    part = RdmaRemoteBuffer(np.int64(whole.ptr + 8), np.int64(8), whole.access_key)
    with pytest.raises(ValueError, match="do not lie within"):
        RdmaTransport("host").write(
            memory.to_view(0, 8),
            RdmaRemoteBuffer(part.ptr, np.int64(64), part.access_key),
        )
