"""GPU memory in several allocations that follow one another is one range to whoever registers it, and to peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.gpu_virtual_memory import GpuSegments
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service
from zerohop.core.control import wire

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

pytestmark = pytest.mark.cuda
OPTIONS = Options(sim_devices=0, providers=("p2p",), require="direct")
LIMIT_S = PATIENCE_S


def _random(nbytes: int) -> bytes:
    return np.random.default_rng().bytes(nbytes)


def _both_ways(memory: zh.Memory, peer: Peer, kind: Kind) -> None:
    """A peer writes and reads all of it; every byte is looked at."""
    theirs = peer.call(Service.new, kind, memory.nbytes, 1)
    handle, data = bytes(memory.share("rw")), _random(memory.nbytes)
    peer.call(Service.put, theirs, 0, data)
    assert peer.call(Service.write, handle, theirs, 0, memory.nbytes) == memory.nbytes
    assert memory.read_bytes() == data
    data = _random(memory.nbytes)
    memory.write_bytes(0, data)
    assert peer.call(Service.read, handle, theirs, 0, memory.nbytes) == memory.nbytes
    assert peer.call(Service.get, theirs, 0, memory.nbytes) == data


@pytest.mark.parametrize("kind", ["cuda", "numpy"])
def test_a_peer_writes_and_reads_a_range_of_three(open_context: OpenContext, start_peer: StartPeer, kind: Kind) -> None:
    context, peer = open_context(OPTIONS), start_peer(OPTIONS)
    with GpuSegments(3) as segments:
        memory = context.register(segments.part(0, 3 * segments.segment))
        _both_ways(memory, peer, kind)
        # From within the first to within the last, none of which begins or ends at a page.
        part = context.register(segments.part(1001, 3 * segments.segment - 77))
        _both_ways(part, peer, kind)
        memory.revoke(timeout=LIMIT_S)
        part.revoke(timeout=LIMIT_S)
        context.close()


def test_a_range_of_more_segments_than_one_message_has_descriptors(
    open_context: OpenContext, start_peer: StartPeer
) -> None:
    count = 2 * wire.MAX_FDS + 3
    context, peer = open_context(OPTIONS), start_peer(OPTIONS)
    with GpuSegments(count) as segments:
        memory = context.register(segments.part(0, count * segments.segment))
        _both_ways(memory, peer, "cuda")
        memory.revoke(timeout=LIMIT_S)
        context.close()


def test_of_this_process_on_another_device(open_context: OpenContext) -> None:
    owner, context = open_context(OPTIONS), open_context(OPTIONS)
    with GpuSegments(3) as segments:
        nbytes = 3 * segments.segment
        memory, data = owner.register(segments.part(0, nbytes)), _random(nbytes)
        source = context.alloc(nbytes, OTHER_GPU)
        source.write_bytes(0, data)
        operation = context.write(source, memory.share("rw"))
        assert operation.result(LIMIT_S) == nbytes
        assert memory.read_bytes() == data
        assert "direct" in str(operation.explain())
        owner.close()


def test_page_lists_across_the_segments(open_context: OpenContext) -> None:
    owner, context = open_context(OPTIONS), open_context(OPTIONS)
    with GpuSegments(3) as segments:
        nbytes, page = 3 * segments.segment, 4096 + 512
        memory, data = owner.register(segments.part(0, nbytes)), _random(nbytes)
        source = context.alloc(nbytes, OTHER_GPU)
        source.write_bytes(0, data)
        memory.fill(0)
        count = nbytes // page
        order = np.random.default_rng(3).permutation(count)
        context.write_pages(source, memory.share("rw"), np.arange(count), order, page_bytes=page).result(LIMIT_S)
        written, sent = (
            np.frombuffer(each, np.uint8)[: count * page].reshape(count, page) for each in (memory.read_bytes(), data)
        )
        assert np.array_equal(written[order], sent)
        owner.close()


def test_a_range_that_grows(open_context: OpenContext, start_peer: StartPeer) -> None:
    """What was registered before goes on; the longer range is another one, and reaches to its end."""
    context, peer = open_context(OPTIONS), start_peer(OPTIONS)
    with GpuSegments(3, mapped=False) as segments:
        segments.map(0)
        first = context.register(segments.part(0, segments.segment))
        _both_ways(first, peer, "cuda")
        with pytest.raises(zh.Unsupported, match="not all allocated on one GPU"):
            context.register(segments.part(0, 2 * segments.segment))
        segments.map(1)
        _both_ways(context.register(segments.part(0, 2 * segments.segment)), peer, "cuda")
        _both_ways(first, peer, "cuda")
        context.close()


def test_another_segment_at_the_same_place_is_other_memory(open_context: OpenContext, start_peer: StartPeer) -> None:
    """As after empty_cache(): what peers have mapped of the range is not used for what lies there now."""
    context, peer = open_context(OPTIONS), start_peer(OPTIONS)
    with GpuSegments(3) as segments:
        for _ in range(3):
            memory = context.register(segments.part(0, 3 * segments.segment))
            _both_ways(memory, peer, "cuda")
            memory.revoke(timeout=LIMIT_S)
            memory.close()
            segments.unmap(1)
            segments.map(1)
        context.close()


def test_segments_that_were_not_made_to_be_shared(open_context: OpenContext) -> None:
    """The bytes arrive, and the explanation says what to change."""
    options = Options(sim_devices=0)
    owner, context = open_context(options), open_context(options)
    with GpuSegments(3, shareable=False) as segments:
        nbytes = 3 * segments.segment
        memory, data = owner.register(segments.part(0, nbytes)), _random(nbytes)
        source = context.alloc(nbytes, OTHER_GPU)
        source.write_bytes(0, data)
        handle = memory.share("rw")
        with pytest.warns(zh.StagedPathWarning):
            assert context.write(source, handle).result(LIMIT_S) == nbytes
        assert memory.read_bytes() == data
        assert "not allocated to be shared" in str(context.explain(source, handle).details())
        owner.close()
