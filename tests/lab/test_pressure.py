"""Full queues, receivers that are not ready, and completion queues that many lanes share: back-pressure, no errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.lanes import CAPABILITY, READ, WRITE, deadline
from support.options import Options
from support.pattern import pattern
from support.service import Service
from support.verbs_pair import VerbsPair, ended
from support.wire import FAR, NEAR, trouble
from support.world import Target
from zerohop._native import NativeError, Reason, RemoteKeys, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fixtures import OpenContext, StartPeer
    from zerohop._native import Endpoint, Op

OK = (Status.OK, Reason.NONE)


@pytest.fixture
def pair() -> Iterator[VerbsPair]:
    pair = VerbsPair(send_depth=32, queue_pairs=1)
    yield pair
    pair.close()


@pytest.fixture
def wired_pair() -> Iterator[VerbsPair]:
    """The same over the wire, whose answers can be made to take their time."""
    pair = VerbsPair(devices=(NEAR, FAR), send_depth=32, queue_pairs=1)
    yield pair
    pair.close()


def test_a_full_queue_says_so_and_loses_nothing(wired_pair: VerbsPair) -> None:
    pair = wired_pair
    operations: list[int | Op] = []

    def fill() -> None:
        for _ in range(2000):
            operations.append(pair.here.engine.post(pair.route, 0, 0, 0, 4096, -1, deadline(60), True))

    # A post that finds the queue full looks at what has ended: so nothing may have.
    with trouble("delay 20ms"), pytest.raises(NativeError) as caught:
        fill()
    assert caught.value.args[:2] == (Status.WOULD_BLOCK.value, Reason.WINDOW_FULL.value)
    for operation in operations:
        assert not isinstance(operation, int)
        assert ended(operation) == OK
    pair.good_write_works()


def test_lists_longer_than_the_queue(pair: VerbsPair) -> None:
    rng = np.random.default_rng(7)
    here, there = rng.permutation(1024).astype(np.int64), rng.permutation(1024).astype(np.int64)
    posted = pair.here.engine.post_pages(pair.route, 0, here, there, 1024, -1, deadline(60), False, 0, 0, pair.nbytes)
    assert not isinstance(posted, int)
    assert ended(posted) == OK
    expected = np.empty_like(pair.there.memory).reshape(1024, 1024)
    expected[there] = pair.here.memory.reshape(1024, 1024)[here]
    assert np.array_equal(pair.there.memory, expected.ravel())


def test_many_lanes_share_one_completion_queue() -> None:
    """More requests in flight than the completion queue has entries, if anybody let them; and one lane fails meanwhile,
    so that each of its requests completes, also those that asked for no completion."""
    pair = VerbsPair(send_depth=512, queue_pairs=2)
    rng = np.random.default_rng(11)
    here, there = rng.permutation(1024).astype(np.int64), rng.permutation(1024).astype(np.int64)
    failing, other = pair.link()
    ends, posted = [failing, other], []

    def route(lane: Endpoint, key: int) -> int:
        keys = RemoteKeys(pair.address, pair.nbytes, READ | WRITE, [key], True)
        return pair.here.engine.route(
            lane, pair.here.region, pair.share, CAPABILITY, pair.nbytes, 3, None, keys, [pair.here.local_key]
        )

    def post(way: int) -> Op:
        operation = pair.here.engine.post_pages(way, 0, here, there, 1024, -1, deadline(100), False, 0, 0, pair.nbytes)
        assert not isinstance(operation, int)
        return operation

    for _ in range(12):
        ends += pair.link()
        way = route(ends[-2], pair.key)
        posted += [post(way), post(way)]
    lost = [post(route(failing, pair.key)), post(route(failing, pair.key ^ 0x5A5A00))]
    for operation in posted:
        assert ended(operation) == OK
    assert ended(lost[1]) == (Status.ACCESS_DENIED, Reason.REMOTE_ACCESS)
    assert ended(lost[0]) in (OK, (Status.PEER_LOST, Reason.LANE_RESET))
    assert pair.here.domain.alive, "the completion queue has overrun"
    expected = np.empty_like(pair.there.memory).reshape(1024, 1024)
    expected[there] = pair.here.memory.reshape(1024, 1024)[here]
    assert np.array_equal(pair.there.memory, expected.ravel())
    pair.good_write_works()
    del ends, other, failing
    pair.close()


def test_a_receiver_that_is_not_ready(open_context: OpenContext, start_peer: StartPeer) -> None:
    """A stopped peer posts no receives: notified writes beyond those that it had wait for it, and none is lost."""
    options = Options(providers=("verbs",), timeout=60.0)
    context, peer = open_context(options), start_peer(options)
    target = Target(peer, "numpy", 4096)
    context.write(pattern(1, 4096), target.handle).result(30)
    peer.stop()
    operations = [context.write(pattern(1, 8), target.handle[:8], notify=number) for number in range(300)]
    with pytest.raises(zh.DeadlineExceeded):
        operations[-1].result(0.5)
    peer.resume()
    for operation in operations:
        assert operation.result(60) == 8
    values = [peer.call(Service.notification).value for _ in operations]
    assert sorted(values) == list(range(300))
