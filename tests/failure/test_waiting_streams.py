"""A stream of the user's that stands still keeps the driver from freeing, unmapping and unregistering anything.

And from loading kernels. All else goes on, and what could not be given back is, once the stream has gone on.

On real GPUs, and on those in software below the driver's interface.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.first_gpu import FirstGpu, Still
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from support.software_gpus import IN_SOFTWARE
from zerohop.core import kernels
from zerohop.core.kernels import loading

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

pytestmark = pytest.mark.cuda
MIB = 1 << 20
ON_GPUS = Options(sim_devices=0, providers=("p2p",))


def expect_to_return(call: Callable[[], object]) -> None:
    """While the stream stands still: in time that nobody would take for a hang."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def expect_to_go_on(context: zh.Context, peer: Peer) -> None:
    """Transfers between memory that neither side has seen before, and back."""
    number = peer.call(Service.new, "cuda", MIB, 1)
    handle, data = zh.RemoteBuffer.from_bytes(peer.call(Service.share, number)), np.random.default_rng().bytes(MIB)
    memory = context.alloc(MIB, "cuda:0")
    memory.write_bytes(0, data)
    assert context.write(memory, handle).result(PATIENCE_S) == MIB
    assert peer.call(Service.get, number, 0, MIB) == data
    memory.write_bytes(0, bytes(MIB))
    assert context.read(handle, memory).result(PATIENCE_S) == MIB
    assert memory.read_bytes() == data


def test_first_use(open_context: OpenContext, start_peer: StartPeer, still: Still) -> None:
    assert still.number
    expect_to_go_on(open_context(ON_GPUS), start_peer(ON_GPUS))


def test_page_lists(open_context: OpenContext, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernel is not there before the stream has gone on; until then each page is copied by itself."""
    image = kernels.image
    # Another image than any that the process has loaded, of which a driver looks at the beginning.
    monkeypatch.setattr(kernels, "image", lambda *args, **kept: _with_a_tail(*(image(*args, **kept))))
    monkeypatch.setattr(loading, "_PATIENCE_S", 0.1)
    still = Still(open_context(ON_GPUS))
    try:
        context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
        handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, peer.call(Service.new, "cuda", MIB, 1)))
        memory, pages = context.alloc(MIB, "cuda:0"), np.arange(64)

        def page_by_page() -> bool:
            operation = context.write_pages(memory, handle, pages, pages[::-1], page_bytes=16384)
            assert operation.result(PATIENCE_S) == MIB
            return "page by page" in str(operation.explain())

        def not_yet() -> bool:
            return "has not loaded the copy kernels yet" in context.explain(memory, handle).details()

        # Nothing can load them now, so each time the same is said.
        for _ in range(2):
            assert page_by_page()
            assert not_yet()
    finally:
        still.close()
    # From here on they may come between any two looks; what has been seen to be so stays so.
    eventually(lambda: not not_yet(), "the kernels are not loaded")
    eventually(lambda: not page_by_page(), "its path is not made anew")
    for _ in range(2):
        assert not page_by_page()
        assert not not_yet()


def _with_a_tail(image: bytes | None, why_not: str) -> tuple[bytes | None, str]:
    if image is None and IN_SOFTWARE:
        return os.urandom(16), ""
    return (None if image is None else image + os.urandom(16)), why_not


def test_a_context_is_closed(open_context: OpenContext, start_peer: StartPeer) -> None:
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    expect_to_go_on(context, peer)
    still = Still(open_context(ON_GPUS))
    try:
        expect_to_return(lambda: context.close(timeout=math.inf))
        expect_to_go_on(open_context(ON_GPUS), peer)
    finally:
        still.close()


# Others' memory is free or not as they like.
@pytest.mark.alone
def test_memory_is_closed(open_context: OpenContext, start_peer: StartPeer) -> None:
    """It is freed when the stream has gone on."""
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    expect_to_go_on(context, peer)
    gpu = FirstGpu()
    gc.collect()
    # What is freed late, of what came before, is far less than half of this.
    memory, free = context.alloc(64 * MIB, "cuda:0"), gpu.free_bytes()
    still = Still(open_context(ON_GPUS))
    try:
        expect_to_return(memory.close)
        expect_to_go_on(context, peer)
        assert gpu.free_bytes() < free + 32 * MIB
    finally:
        still.close()
    eventually(lambda: gpu.free_bytes() >= free + 32 * MIB, "the memory is not freed")


def test_the_peer_takes_memory_back(open_context: OpenContext, start_peer: StartPeer) -> None:
    """It hears that it is unmapped when it is."""
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    number = peer.call(Service.new, "cuda", MIB, 1)
    handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, number))
    memory = context.alloc(MIB, "cuda:0")
    context.write(memory, handle).result(PATIENCE_S)
    still = Still(open_context(ON_GPUS))
    try:
        assert peer.call(Service.revoke, number, 0.2).kind == "RevocationIncomplete"

        def says_why() -> bool:
            with pytest.raises(zh.DeadlineExceeded) as caught:
                context.write(memory, handle, timeout=0.2).result(PATIENCE_S)
            return "a stream of a GPU here waits" in str(caught.value)

        # It is said shortly before the deadline, which on a busy machine may have passed then.
        eventually(says_why, "nobody says what it waits for")
        expect_to_go_on(context, peer)
    finally:
        still.close()
    with pytest.raises(zh.AccessDenied):
        context.write(memory, handle).result(PATIENCE_S)


def test_host_memory_is_closed(open_context: OpenContext, start_peer: StartPeer) -> None:
    """The user's own stays mapped until the driver does not know it any more: other memory might get its address.

    The object is one that unmaps before any weak reference to it is told.
    """
    context, peer = open_context(ON_GPUS), start_peer(ON_GPUS)
    number = peer.call(Service.new, "cuda", MIB, 1)
    handle = zh.RemoteBuffer.from_bytes(peer.call(Service.share, number))
    name = f"zerohop-test-{os.getpid()}-{number}"
    fd = os.memfd_create(name)
    os.truncate(fd, MIB)

    def is_mapped() -> bool:
        return name in Path("/proc/self/maps").read_text()

    mapped = mmap.mmap(fd, MIB)
    os.close(fd)
    memory = context.register(mapped)
    context.write(memory, handle).result(PATIENCE_S)
    still = Still(open_context(ON_GPUS))
    try:
        del mapped
        expect_to_return(memory.close)
        del memory
        expect_to_go_on(context, peer)
        gc.collect()
        assert is_mapped()
    finally:
        still.close()
    eventually(lambda: gc.collect() >= 0 and not is_mapped(), "it is not let go of")
