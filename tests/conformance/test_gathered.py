"""Small transfers between GPUs that were posted while others are under way go together, and each is what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import OTHER_GPU
from support.first_gpu import UserStream
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.service import Service

if TYPE_CHECKING:
    from support.fixtures import OpenContext, StartPeer
    from support.peer import Peer

pytestmark = pytest.mark.cuda
ON_GPUS = Options(sim_devices=0, providers=("p2p",), require="direct")
NBYTES = 4 << 20
LIMIT_S = PATIENCE_S


@pytest.fixture
def context(open_context: OpenContext) -> zh.Context:
    return open_context(ON_GPUS)


@pytest.fixture
def peer(start_peer: StartPeer) -> Peer:
    return start_peer(ON_GPUS)


def _target(peer: Peer) -> tuple[int, zh.RemoteBuffer]:
    number = peer.call(Service.new, "cuda", NBYTES, 1)
    return number, zh.RemoteBuffer.from_bytes(peer.call(Service.share, number, "rw"))


def _gathered(context: zh.Context) -> int:
    return context.statistics().engine["copies_gathered"]


def _cuts(rng: np.random.Generator) -> list[slice]:
    """Ranges of every alignment and of many lengths, with gaps, the whole of a part too large to be gathered."""
    edges = np.unique(np.concatenate([rng.integers(0, NBYTES, 400), [0, 1, 17, 100, 70_000, 170_000, NBYTES]]))
    return [slice(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=False)]


def test_every_size_and_alignment(context: zh.Context, peer: Peer) -> None:
    """Written by some and read back by others, at offsets that differ from those of the source."""
    rng = np.random.default_rng()
    number, handle = _target(peer)
    source, back = context.alloc(NBYTES + 64, OTHER_GPU), context.alloc(NBYTES, OTHER_GPU)
    data, expected = rng.bytes(NBYTES + 64), bytearray(NBYTES)
    source.write_bytes(0, data)
    back.fill(0)
    peer.call(Service.put, number, 0, bytes(NBYTES))
    context.write(source[:16], handle[:16]).result(LIMIT_S)  # connects
    expected[:16] = data[:16]
    operations = []
    for cut in _cuts(rng):
        shift = int(rng.integers(0, 64))
        operations.append(context.write(source[cut.start + shift : cut.stop + shift], handle[cut]))
        expected[cut] = data[cut.start + shift : cut.stop + shift]
    zh.wait_all(operations, LIMIT_S)
    assert peer.call(Service.get, number, 0, NBYTES) == bytes(expected)
    assert [operation.result() for operation in operations] == [operation.nbytes for operation in operations]
    context.read(handle[:16], back[:16]).result(LIMIT_S)  # the others need not wait for a first use, one by one
    before = _gathered(context)
    assert before
    cuts, seen = _cuts(rng), bytearray(NBYTES)
    seen[:16] = expected[:16]
    zh.wait_all([context.read(handle[cut], back[cut]) for cut in cuts], LIMIT_S)
    for cut in cuts:
        seen[cut] = expected[cut]
    assert back.read_bytes() == bytes(seen)
    assert _gathered(context) > before


def test_nobody_waits(context: zh.Context, peer: Peer) -> None:
    """All of them are written, and soon."""
    number, handle = _target(peer)
    source = context.alloc(NBYTES, "cuda:0")
    source.fill(7)
    context.write(source[:16], handle[:16]).result(LIMIT_S)
    operations = [context.write(source[i : i + 100], handle[i : i + 100]) for i in range(0, 10_000, 100)]
    eventually(lambda: all(operation.done() for operation in operations), "all are done")
    assert peer.call(Service.get, number, 0, 10_000) == bytes([7]) * 10_000


def test_a_notification_after_them(context: zh.Context, peer: Peer) -> None:
    """`flush` is over when they are visible, and a notified write is not held up by them."""
    number, handle = _target(peer)
    source = context.alloc(NBYTES, "cuda:0")
    source.fill(9)
    context.write(source[:16], handle[:16]).result(LIMIT_S)
    for i in range(0, 1000, 10):
        context.write(source[i : i + 10], handle[i : i + 10])
    context.flush().result(LIMIT_S)
    assert peer.call(Service.get, number, 0, 1000) == bytes([9]) * 1000
    posted = [context.write(source[i : i + 10], handle[i : i + 10]) for i in range(1000, 2000, 10)]
    context.write(source[2000:3000], handle[2000:3000], notify=5).result(LIMIT_S)
    assert peer.call(Service.notification, LIMIT_S).value == 5
    assert peer.call(Service.get, number, 2000, 1000) == bytes([9]) * 1000
    zh.wait_all(posted, LIMIT_S)
    assert peer.call(Service.get, number, 1000, 1000) == bytes([9]) * 1000


def test_closing_with_some_held(open_context: OpenContext, context: zh.Context, peer: Peer) -> None:
    """Each ends, well or with Closed, and the memory can be used again."""
    _, handle = _target(peer)
    source = context.alloc(NBYTES, "cuda:0")
    context.write(source, handle).result(LIMIT_S)
    posted = [context.write(source[i : i + 100], handle[i : i + 100]) for i in range(0, 20_000, 100)]
    context.close()
    errors = [operation.exception(LIMIT_S) for operation in posted]
    assert all(error is None or isinstance(error, zh.Closed) for error in errors)
    again = open_context(ON_GPUS)
    fresh = again.alloc(NBYTES, "cuda:0")
    again.write(fresh, handle).result(LIMIT_S)


def test_the_peer_is_killed(context: zh.Context, peer: Peer) -> None:
    _, handle = _target(peer)
    source = context.alloc(NBYTES, "cuda:0")
    context.write(source, handle).result(LIMIT_S)
    peer.stop()
    posted = [context.write(source[i : i + 100], handle[i : i + 100]) for i in range(0, 2000, 100)]
    peer.kill()
    errors = [operation.exception(LIMIT_S) for operation in posted]
    assert all(error is None or isinstance(error, zh.PeerLost) for error in errors)


def test_a_stream_waits_for_one_that_is_held(context: zh.Context, peer: Peer) -> None:
    """It is issued then: whoever waits on a stream looks for nothing."""
    number, handle = _target(peer)
    source = context.alloc(NBYTES, "cuda:0")
    source.fill(3)
    context.write(source, handle).result(LIMIT_S)
    source.fill(4)
    stream = UserStream()
    *_, operation = [context.write(source[i : i + 100], handle[i : i + 100]) for i in range(0, 1000, 100)]
    operation.wait_on(stream.number)
    stream.finish()  # with nobody here who waits for the operation
    assert operation.result(LIMIT_S) == 100
    assert peer.call(Service.get, number, 900, 100) == bytes([4]) * 100
    stream.close()
