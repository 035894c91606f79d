"""Host memory of the user's that GPUs copy: known to the driver for a while after its last use, and never too long."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.first_gpu import FirstGpu
from support.forking import in_child
from support.interleaving import Meanwhile, at_each_step
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from zerohop.core.memory import retention, sources

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

pytestmark = pytest.mark.cuda
NBYTES = 1 << 16
LIMIT_S = PATIENCE_S
ON_GPUS = Options(sim_devices=0, providers=("p2p",))


def on_gpu_of(peer: Peer) -> tuple[int, zh.RemoteBuffer]:
    number = peer.call(Service.new, "cuda", NBYTES, 1)
    return number, zh.RemoteBuffer.from_bytes(peer.call(Service.share, number))


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_an_array_that_comes_back_is_not_pinned_again(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LINGER_S", 1000.0)
    context, peer, gpu = open_context(ON_GPUS), start_peer(ON_GPUS), FirstGpu()
    _, handle = on_gpu_of(peer)
    array = np.zeros(NBYTES, np.uint8)
    for _ in range(3):
        context.write(array, handle).result(LIMIT_S)
        assert gpu.knows(address_of(array))
        assert context.statistics().registrations == 1
        eventually(lambda: context.statistics().pinned == 1, "it alone is kept")
    context.register(array).close()
    eventually(lambda: not gpu.knows(address_of(array)), "the driver has forgotten it")


def test_it_is_forgotten(open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some time after its last use, though the array still lives; and it can be used again."""
    monkeypatch.setattr(retention, "_LINGER_S", 0.1)
    context, peer, gpu = open_context(ON_GPUS), start_peer(ON_GPUS), FirstGpu()
    number, handle = on_gpu_of(peer)
    for _ in range(2):
        array = np.random.default_rng().integers(0, 256, NBYTES, np.uint8)
        for _ in range(2):
            context.write(array, handle).result(LIMIT_S)
            assert peer.call(Service.get, number, 0, NBYTES) == array.tobytes()
            eventually(lambda: not gpu.knows(address_of(array)), "the driver has forgotten it")  # noqa: B023
    eventually(lambda: context.statistics().pinned == 0, "nothing is kept")


def test_memory_that_is_open_stays_known(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LINGER_S", 0.0)
    context, peer, gpu = open_context(ON_GPUS), start_peer(ON_GPUS), FirstGpu()
    _, handle = on_gpu_of(peer)
    array = np.zeros(NBYTES, np.uint8)
    memory, other = context.register(array), context.register(array[:100])
    context.write(memory, handle).result(LIMIT_S)
    context.write(array, handle).result(LIMIT_S)
    other.close()
    eventually(lambda: context.statistics().pinned == 0, "all that was closed is let go of")
    assert gpu.knows(address_of(array))
    memory.close()
    eventually(lambda: not gpu.knows(address_of(array)), "the driver has forgotten it")


def test_threads_that_come_and_go(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While devices are made to forget it at every moment, whoever uses it finds it."""
    monkeypatch.setattr(retention, "_LINGER_S", 0.0)
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    number, handle = on_gpu_of(peer)
    array = np.random.default_rng().integers(0, 256, NBYTES, np.uint8)
    failed: list[BaseException] = []

    def use() -> None:
        try:
            for i in range(100):
                if i % 3:
                    context.write(array, handle).result(LIMIT_S)
                else:
                    with context.register(array) as memory:
                        context.write(memory, handle).result(LIMIT_S)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert peer.call(Service.get, number, 0, NBYTES) == array.tobytes()


@pytest.mark.parametrize("first", ["who comes back", "who forgets"])
def test_coming_back_at_each_step_of_forgetting(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """One thread has devices forget the array, the other registers it, at each step of either."""
    monkeypatch.setattr(retention, "_LINGER_S", 1000.0)
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    number, handle = on_gpu_of(peer)
    array = np.random.default_rng().integers(0, 256, NBYTES, np.uint8)
    memories: list[zh.Memory] = []

    def come_back() -> None:
        memories.append(context.register(array))

    both = come_back, context._core.retention.stop_lingering
    action, other = both if first == "who comes back" else both[::-1]

    def attempt(step: int) -> Meanwhile:
        context.write(array, handle).result(LIMIT_S)
        meanwhile = Meanwhile(action, other, step)
        assert not meanwhile.errors
        if not memories:
            come_back()
        array[:] = step % 251
        context.write(memories[0], handle).result(LIMIT_S)
        assert peer.call(Service.get, number, 0, NBYTES) == array.tobytes()
        memories.pop().close()
        return meanwhile

    at_each_step(attempt)
    eventually(lambda: context.statistics().pinned == 0, "nothing is kept")
    assert context.statistics().registrations <= 1


def test_windows_of_one_array(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver knows none that overlaps another; one that is known for a while only makes room for the next."""
    monkeypatch.setattr(retention, "_LINGER_S", 1000.0)
    monkeypatch.setattr(sources, "has_its_own_memory", lambda _: True)  # as of a tensor made from part of an array
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    _, handle = on_gpu_of(peer)
    array = np.zeros(2 * NBYTES, np.uint8)
    windows = [array.data[i * NBYTES // 4 :][:NBYTES] for i in range(4)]
    for window in windows:
        operation = context.write(window, handle)
        operation.result(LIMIT_S)
        assert "direct" in str(operation.explain())


def test_a_child_that_drops_them(
    open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks the driver nothing, which could wait for ever there, and takes nothing from the parent."""
    monkeypatch.setattr(retention, "_LINGER_S", 1000.0)
    context, peer, gpu = open_context(ON_GPUS), start_peer(ON_GPUS), FirstGpu()
    _, handle = on_gpu_of(peer)
    arrays = [np.zeros(NBYTES, np.uint8) for _ in range(3)]
    memories: list[zh.Memory] = [context.register(array) for array in arrays[1:]]
    for array in arrays:
        context.write(array, handle).result(LIMIT_S)

    def work() -> str:
        memories.pop().close()
        memories.clear()
        arrays.clear()
        gc.collect()
        return "done"

    assert in_child(work) == "done"
    assert all(gpu.knows(address_of(array)) for array in arrays)
    context.write(memories[0], handle).result(LIMIT_S)
