"""Accelerator memory and NICs: registered where that works, else staged, or refused where that is asked."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.pattern import pattern
from support.service import Service
from support.sizes import MIB
from support.world import Target

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer

NBYTES = MIB + 4097


def _with(peermem: bool) -> Options:
    return Options(providers=("verbs",), sim_peermem=peermem, timeout=60.0)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("here", [True, False])
def test_with_and_without_peermem(open_context: OpenContext, start_peer: StartPeer, here: bool, there: bool) -> None:
    """What the NIC cannot reach goes through host buffers, and `explain` says why and what to do."""
    context, peer = open_context(_with(here)), start_peer(_with(there))
    source = context.alloc(NBYTES, "sim:0")
    source.write_bytes(0, pattern(3, NBYTES).tobytes())
    target = Target(peer, "sim", NBYTES)
    assert context.write(source, target.handle, notify=7).result(60) == NBYTES
    assert peer.call(Service.notification).value == 7
    target.expect(0, NBYTES, 3)
    back = context.alloc(NBYTES, "sim:0")
    assert context.read(target.handle, back).result(60) == NBYTES
    assert back.read_bytes() == pattern(3, NBYTES).tobytes()
    path = context.explain(source, target.handle)
    assert path.provider == "verbs"
    assert path.direct == (here and there), path.details()
    assert "peermem" in path.details(), path.details()
    # Each step that was tried, of the one that worked too.
    known = dict(path.registered)
    assert set(known) == ({"here", "there"} if here and there else set()), path.details()
    assert all("alias address (peermem)" in how for how in known.values()), path.details()


@pytest.mark.parametrize("side", ["here", "there"])
def test_strict(open_context: OpenContext, start_peer: StartPeer, side: str) -> None:
    """`require="direct"`: an error instead of a slow path, and nothing is moved."""
    context = open_context(Options(providers=("verbs",), sim_peermem=side != "here", require="direct", timeout=60.0))
    peer = start_peer(_with(side != "there"))
    source, target = context.alloc(NBYTES, "sim:0"), Target(peer, "sim", NBYTES)
    target.poison()
    with pytest.raises(zh.Unsupported) as caught:
        context.write(source, target.handle).result(60)
    assert "peermem" in str(caught.value)
    target.expect_poison()
    # Host memory needs no module.
    assert context.write(np.zeros(NBYTES, np.uint8), Target(peer, "numpy", NBYTES).handle).result(60) == NBYTES


def test_memory_that_another_process_made(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Registered by who imported it as by its owner, both as what is written and as what is written from."""
    context, peer = open_context(_with(True)), start_peer(_with(True))
    number = peer.call(Service.new, "shared_memory", NBYTES, 0)
    name = peer.call(Service.shared_name, number)
    other = start_peer(_with(True))
    target = Target(other, "numpy", NBYTES)
    peer.call(Service.fill, number, 0, NBYTES, 5)
    imported = SharedMemory(name)
    try:
        view: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.ndarray(NBYTES, np.uint8, buffer=imported.buf)
        memory = context.register(view)
        assert context.write(memory, target.handle).result(60) == NBYTES
        target.expect(0, NBYTES, 5)
        target.fill(0, NBYTES, 6)
        assert context.read(target.handle, memory).result(60) == NBYTES
        peer.call(Service.expect, number, 0, NBYTES, 6)
        path = context.explain(memory, target.handle)
        assert (path.provider, path.form, path.direct) == ("verbs", "rdma", True), path.details()
        memory.close()
        del memory, view
    finally:
        imported.close()
