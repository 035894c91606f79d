"""Queue pairs that two Contexts agree on for kernels: who keeps them, and what a peer may ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from device.runners import runner
from support.lanes import eventually
from support.patience import PATIENCE_S
from zerohop.core.transfers.context_transfers import core_of
from zerohop.device import CLOSED, OK, PEER_LOST, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zerohop.core.peers.peer_link import PeerLink

NBYTES = 4096


class Pair:
    def __init__(self) -> None:
        self.far, self.near = (zh.Context(providers=["verbs"]) for _ in range(2))
        self.there, self.here = self.far.alloc(NBYTES), self.near.alloc(NBYTES)
        self.handle = self.there.share("rw")

    def queue(self, **options: Any) -> Queue:
        return Queue(self.near, [self.handle], [self.here], mode="mlx5", **options)

    def links(self) -> tuple[PeerLink, PeerLink]:
        return core_of(self.near).connected[self.far.id], core_of(self.far).connected[self.near.id]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.near.close()
    pair.far.close()


def test_the_peer_lets_go_of_its_ends(pair: Pair) -> None:
    queues = [pair.queue() for _ in range(3)]
    near, far = pair.links()
    assert len(far.queue_pairs) == 3
    assert not near.queue_pairs
    for queue in queues:
        queue.close()
    eventually(lambda: not far.queue_pairs, "the peer keeps queue pairs")
    dropped = pair.queue()
    assert len(far.queue_pairs) == 1
    del dropped
    eventually(lambda: not far.queue_pairs, "the peer keeps queue pairs")
    kept = pair.queue()
    pair.near.close()
    eventually(lambda: not far.queue_pairs, "the peer keeps queue pairs")
    kept.close()


def test_an_end_whose_queue_could_not_be_made_is_closed(pair: Pair) -> None:
    refused = pair.far.alloc(NBYTES).share("w")
    with pytest.raises(zh.Unsupported, match=r'peer 1 gives no right to read.*share the memory with rights="rw"'):
        Queue(pair.near, [pair.handle, refused], [pair.here], mode="mlx5")
    eventually(lambda: not pair.links()[1].queue_pairs, "the peer keeps queue pairs")


def test_a_call_that_makes_no_sense(pair: Pair) -> None:
    pair.queue().close()
    near, far = pair.links()

    def call(service: str, body: bytes) -> bytes:
        assert near.session is not None
        coroutine = near.session.call(service, body)
        return asyncio.run_coroutine_threadsafe(coroutine, core_of(pair.near).control.loop).result(PATIENCE_S)

    eventually(lambda: not far.queue_pairs, "the peer keeps queue pairs")
    for body in (b"", b"x" * 33, b"x" * 35):
        with pytest.raises(zh.ProtocolError, match="malformed"):
            call("open queue pair", body)
    assert call("open queue pair", b"\xff" * 34) == b""  # of a lane that is not there
    for body in (b"", b"1234", b"x" * 100):
        assert call("close queue pair", body) == b""
    assert not far.queue_pairs


def test_the_peer_closes_its_context(pair: Pair) -> None:
    run = runner("thread", "host")
    report = pair.near.alloc(16)
    with pair.queue(timeout=PATIENCE_S) as queue:
        with queue.active():
            run("put", queue.pointer, report.address, (0, 0, 0, 0, 8))
            run("flush", queue.pointer, report.address, (0,))
        assert report.read_bytes(0, 8) == OK.to_bytes(8, "little")
        pair.far.close()
        eventually(lambda: _fails(queue), "the loss of the peer is not told")
        with queue.active():
            run("flush", queue.pointer, report.address, (0,))
        assert report.read_bytes(0, 8) == PEER_LOST.to_bytes(8, "little")
        with pytest.raises(zh.PeerLost):
            queue.check()


def test_a_kernel_calls_a_queue_that_is_closed(pair: Pair) -> None:
    run = runner("thread", "host")
    report = np.full(2, 99, np.int64)
    queue = pair.queue(timeout=PATIENCE_S)
    queue.close()
    pair.near.close()
    run("flush", queue.pointer, report.ctypes.data, (0,))  # the memory behind the pointer is there as long as the Queue
    assert report[0] == CLOSED


def _fails(queue: Queue) -> bool:
    try:
        queue.check()
    except zh.PeerLost:
        return True
    return False
