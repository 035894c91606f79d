"""Memory of a GPU's memory pools goes to other processes where its pool was made for it, and is staged where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.gpu_pools import GpuPool
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer

pytestmark = pytest.mark.cuda
NBYTES = 1 << 20
LIMIT_S = PATIENCE_S


def _random() -> bytes:
    return np.random.default_rng().bytes(NBYTES)


@pytest.mark.parametrize("kind", ["cuda", "numpy"])
def test_a_peer_writes_and_reads_it(open_context: OpenContext, start_peer: StartPeer, kind: Kind) -> None:
    options = Options(sim_devices=0, providers=("p2p",))
    context, peer = open_context(options), start_peer(options)
    with GpuPool() as pool:
        before, memory = pool.alloc(NBYTES), context.register(pool.alloc(NBYTES))
        theirs = peer.call(Service.new, kind, NBYTES, 1)
        handle, data = bytes(memory.share("rw")), _random()
        peer.call(Service.put, theirs, 0, data)
        assert peer.call(Service.write, handle, theirs, 0, NBYTES) == NBYTES
        assert memory.read_bytes() == data
        # A part, from the middle of the allocation, which is not the first of its pool.
        part, data = bytes(memory[4096 : 3 * 4096].share("rw")), _random()
        memory.write_bytes(0, data)
        assert peer.call(Service.read, part, theirs, 100, 8192) == 8192
        assert peer.call(Service.get, theirs, 100, 8192) == data[4096 : 3 * 4096]
        assert context.register(before).address == before[0]
        memory.revoke(timeout=LIMIT_S)
        context.close()


def test_of_this_process_on_another_device(open_context: OpenContext) -> None:
    options = Options(sim_devices=0, providers=("p2p",))
    owner, context = open_context(options), open_context(options)
    with GpuPool() as pool:
        memory, data = owner.register(pool.alloc(NBYTES)), _random()
        source = context.alloc(NBYTES, OTHER_GPU)
        source.write_bytes(0, data)
        operation = context.write(source, memory.share("rw"))
        assert operation.result(LIMIT_S) == NBYTES
        assert memory.read_bytes() == data
        assert "direct" in str(operation.explain())
        owner.close()


def test_a_pool_that_was_not_made_to_be_shared(open_context: OpenContext) -> None:
    """As that of cudaMallocAsync: the bytes arrive, and the explanation says what to change."""
    options = Options(sim_devices=0)
    owner, context = open_context(options), open_context(options)
    with GpuPool(shareable=False) as pool:
        memory, data = owner.register(pool.alloc(NBYTES)), _random()
        source = context.alloc(NBYTES, OTHER_GPU)
        source.write_bytes(0, data)
        handle = memory.share("rw")
        with pytest.warns(zh.StagedPathWarning):
            assert context.write(source, handle).result(LIMIT_S) == NBYTES
        assert memory.read_bytes() == data
        assert "not made to be shared" in str(context.explain(source, handle).details())
        owner.close()


def test_what_was_freed_is_not_what_comes_after_it(open_context: OpenContext, start_peer: StartPeer) -> None:
    """A pool gives an address again at once; what peers had of it is not used for what comes there."""
    options = Options(sim_devices=0, providers=("p2p",))
    context, peer = open_context(options), start_peer(options)
    theirs = peer.call(Service.new, "cuda", NBYTES, 1)
    with GpuPool() as pool:
        for _ in range(4):
            allocated, data = pool.alloc(NBYTES), _random()
            memory = context.register(allocated)
            peer.call(Service.put, theirs, 0, data)
            peer.call(Service.write, bytes(memory.share("rw")), theirs, 0, NBYTES)
            assert memory.read_bytes() == data
            memory.revoke(timeout=LIMIT_S)
            memory.close()
            pool.free(allocated[0])
        context.close()
